//! The worker gRPC API: generated messages and services, and conversions to and from the types of
//! `forgeplane-core`.
//!
//! Conversions towards core are fallible and name the field at fault; an unknown enum value is refused,
//! never read as a default.
//!
//! ```
//! use forgeplane_core::ports::{Heartbeat, Holding};
//! use forgeplane_core::model::{Fence, Nonce};
//! use forgeplane_proto::v1;
//!
//! let heartbeat = Heartbeat { holding: vec![Holding { fence: Fence(7), nonce: Nonce([1; 16]) }] };
//! let message = v1::HeartbeatRequest::from(heartbeat.clone());
//! assert_eq!(Heartbeat::try_from(message).unwrap(), heartbeat);
//! ```
#![forbid(unsafe_code)]

mod bundle;
mod convert;

pub use bundle::{BundleAssembly, CHUNK_BYTES, bundle_chunks};
pub use convert::{InvalidMessage, registration_from, registration_into};

/// Generated from `proto/forgeplane/worker/v1/worker.proto`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used, unused_qualifications)]
pub mod v1 {
    tonic::include_proto!("forgeplane.worker.v1");
}
