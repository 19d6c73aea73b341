//! The worker gRPC API: generated messages and services, conversions to and from the types of `forgeplane-core`,
//! and the worker's [`client`].
//!
//! Conversions towards core are fallible and name the field at fault; an unknown enum value is refused,
//! never read as a default.
//!
//! ```
//! use forgeplane_core::ports::{Heartbeat, Holding};
//! use forgeplane_core::model::{Fence, Nonce};
//! use forgeplane_proto::v1;
//!
//! let heartbeat = Heartbeat { holding: vec![Holding { fence: Fence(7), nonce: Nonce([1; 16]) }], draining: true, newest: Fence(7), short_of: None };
//! let message = v1::HeartbeatRequest::from(heartbeat.clone());
//! assert_eq!(Heartbeat::try_from(message).unwrap(), heartbeat);
//! ```
#![forbid(unsafe_code)]

mod bundle;
pub mod client;
mod convert;
mod session;
mod status;

pub use bundle::{BundleAssembly, CHUNK_BYTES, bundle_chunks};
pub use convert::{
    InvalidMessage, artifact_from, artifact_header, delivery_of, registration_from, registration_into,
    state_from, state_header,
};
pub use session::{read_session, write_session};
pub use status::{from_status, into_status, invalid};

/// The described API, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/worker.bin"));

/// Generated from `proto/forgeplane/worker/v1/worker.proto`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used, unused_qualifications)]
pub mod v1 {
    tonic::include_proto!("forgeplane.worker.v1");
}
