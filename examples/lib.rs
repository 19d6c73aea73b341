//! Examples of embedding Forgeplane; see `embed.rs`.
