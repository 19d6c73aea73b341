//! Source bundles: refused whole before anything is written.
