//! Generates the messages and services; compiles the protobuf files in Rust, so that no protoc is needed.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/forgeplane/worker/v1/worker.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("worker.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
