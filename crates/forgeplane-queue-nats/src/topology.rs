//! What must exist on the broker: the stream of jobs and each worker's consumer.

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::{
    CreateStreamErrorKind, GetStreamError, GetStreamErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode, stream};
use forgeplane_core::id::WorkerId;

use crate::error::{ConnectError, Trouble};
use crate::options::NatsOptions;

/// How many deliveries of one worker may be unanswered.
///
/// A worker pulls one job at a time. This leaves room for those that wait out the delay of a `nak`, which count
/// as unanswered: with room for one, a delayed job would hold up all others. It also lets a worker go on while
/// a delivery that was lost on its way waits for its redelivery.
const MAX_UNANSWERED: i64 = 64;

/// The stream as it should be.
fn stream_config(options: &NatsOptions) -> Config {
    Config {
        name: options.stream.clone(),
        description: Some("Jobs for Forgeplane workers".into()),
        subjects: vec![format!("{}.*", options.prefix)],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        // A full stream must refuse a job, which then stays in the outbox; not drop an older one.
        discard: DiscardPolicy::New,
        max_messages: i64::from(options.max_messages),
        max_bytes: i64::try_from(options.max_bytes).unwrap_or(i64::MAX),
        max_messages_per_subject: -1,
        max_message_size: -1,
        max_consumers: -1,
        num_replicas: options.replicas,
        duplicate_window: options.duplicate_window,
        ..Config::default()
    }
}

/// A worker's consumer as it should be.
fn consumer_config(options: &NatsOptions, worker: WorkerId) -> pull::Config {
    pull::Config {
        durable_name: Some(worker.to_string()),
        filter_subject: options.subject(worker),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: options.ack_wait,
        // A limit would leave a message behind that nobody ever gets.
        max_deliver: -1,
        max_ack_pending: MAX_UNANSWERED,
        // No backoff, which would override the ack wait; no inactive threshold, for jobs also wait for a worker
        // that is away.
        ..pull::Config::default()
    }
}

/// Makes the stream, or changes it to what it should be, unless it is another kind of stream.
pub(crate) async fn ensure_stream(context: &Context, options: &NatsOptions) -> Result<(), ConnectError> {
    let wanted = stream_config(options);
    match context.get_stream(&wanted.name).await {
        Ok(stream) => {
            let found = &stream.cached_info().config;
            refuse_another_kind(found, &wanted)?;
            if !is_as_wanted(found, &wanted) {
                context.update_stream(&wanted).await.map_err(|e| ConnectError::Stream(e.into()))?;
                tracing::info!(stream = wanted.name, "changed the stream of jobs to what the options say");
            }
            Ok(())
        }
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(code) if code.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                create_stream(context, wanted).await
            }
            GetStreamErrorKind::JetStream(_) => Err(ConnectError::NoJetStream(error.into())),
            _ if is_unanswered(&error) => Err(ConnectError::NoJetStream(error.into())),
            _ => Err(ConnectError::Stream(error.into())),
        },
    }
}

async fn create_stream(context: &Context, wanted: Config) -> Result<(), ConnectError> {
    let name = wanted.name.clone();
    match context.create_stream(wanted).await {
        Ok(_) => {
            tracing::info!(stream = name, "made the stream of jobs");
            Ok(())
        }
        Err(error) if error.kind() == CreateStreamErrorKind::JetStreamUnavailable => {
            Err(ConnectError::NoJetStream(error.into()))
        }
        Err(error) => Err(ConnectError::Stream(error.into())),
    }
}

/// Whether nothing on the server listens to JetStream's API.
fn is_unanswered(error: &GetStreamError) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|it| it.downcast_ref::<RequestError>())
        .is_some_and(|it| it.kind() == RequestErrorKind::NoResponders)
}

/// What cannot be changed, or must not be because the stream is somebody else's.
fn refuse_another_kind(found: &Config, wanted: &Config) -> Result<(), ConnectError> {
    let different = [
        ("the retention", format!("{:?}", found.retention), format!("{:?}", wanted.retention)),
        ("the storage", format!("{:?}", found.storage), format!("{:?}", wanted.storage)),
        ("the subjects", format!("{:?}", found.subjects), format!("{:?}", wanted.subjects)),
    ]
    .into_iter()
    .find(|(_, found, wanted)| found != wanted);
    match different {
        None => Ok(()),
        Some((field, found, needed)) => Err(ConnectError::IncompatibleStream {
            stream: wanted.name.clone(),
            field,
            found,
            wanted: needed,
        }),
    }
}

fn is_as_wanted(found: &Config, wanted: &Config) -> bool {
    found.discard == wanted.discard
        && found.max_messages == wanted.max_messages
        && found.max_bytes == wanted.max_bytes
        && found.num_replicas == wanted.num_replicas
        && found.duplicate_window == wanted.duplicate_window
}

/// Makes a worker's consumer, or changes it to what it should be.
pub(crate) async fn ensure_consumer(
    stream: &stream::Stream<()>,
    options: &NatsOptions,
    worker: WorkerId,
) -> Result<(), Trouble> {
    stream.create_consumer(consumer_config(options, worker)).await?;
    Ok(())
}
