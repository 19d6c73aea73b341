//! Readable reference backends, for tests, simulations and embedding.
