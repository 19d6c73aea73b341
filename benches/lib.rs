//! Benchmarks; run one with `cargo bench -p forgeplane-benches --bench store_sqlite`.
