//! Masks secrets in output, however the output is cut into pieces.
