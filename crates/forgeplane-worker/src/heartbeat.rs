//! Heartbeats, which must go on whatever the job does.

use std::sync::Arc;

use forgeplane_core::ports::EntropyExt as _;
use tokio_util::sync::CancellationToken;

use crate::error::{WorkerError, at};
use crate::host::Guard;
use crate::worker::Running;

/// Sends heartbeats apart from everything else: they must not stop because the job keeps the worker busy.
pub(crate) struct Heartbeats {
    stop: CancellationToken,
    _beating: Guard,
}

impl Heartbeats {
    pub(crate) fn start(running: Arc<Running>) -> Result<Self, WorkerError> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let host = Arc::clone(&running.host);
        let beating =
            host.aside("heartbeat", Box::pin(beat(running, stopped))).map_err(at("the heartbeats"))?;
        Ok(Self { stop, _beating: beating })
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn beat(running: Arc<Running>, stop: CancellationToken) {
    let entropy = running.host.entropy();
    let mut told = false;
    let mut short_of = None;
    loop {
        let heartbeat = running.heartbeat();
        metrics::gauge!("forgeplane_worker_held_attempts").set(heartbeat.holding.len() as f64);
        told |= heartbeat.draining;
        if heartbeat.short_of != short_of {
            match &heartbeat.short_of {
                Some(what) => tracing::warn!(what, "short of something: nothing new is taken"),
                None => tracing::info!("short of nothing any more: jobs are taken again"),
            }
            short_of.clone_from(&heartbeat.short_of);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            answer = running.link.heartbeat(heartbeat) => match answer {
                Ok(orders) => {
                    metrics::counter!("forgeplane_worker_heartbeats_total", "result" => "answered").increment(1);
                    running.take_orders(orders);
                    running.beats.send_modify(|beats| *beats += 1);
                }
                Err(error) => {
                    metrics::counter!("forgeplane_worker_heartbeats_total", "result" => "lost").increment(1);
                    tracing::warn!(%error, "a heartbeat was not answered");
                }
            }
        }
        let jitter = 0.9 + f64::from(entropy.bytes::<1>()[0]) / 255.0 * 0.2;
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = running.draining.cancelled(), if !told => {}
            () = tokio::time::sleep(running.link.heartbeat.mul_f64(jitter)) => {}
        }
    }
}
