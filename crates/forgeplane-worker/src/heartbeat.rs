//! Heartbeats, which must go on whatever the job does.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::error::{WorkerError, at};
use crate::worker::Running;

/// Sends heartbeats from a thread of its own: they must not stop because the job keeps the others busy.
pub(crate) struct HeartbeatThread {
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HeartbeatThread {
    pub(crate) fn start(running: Arc<Running>) -> Result<Self, WorkerError> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(at("the heartbeat thread"))?;
        let thread = std::thread::Builder::new()
            .name("heartbeat".into())
            .spawn(move || runtime.block_on(beat(running, stopped)))
            .map_err(at("the heartbeat thread"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It ends within the current heartbeat; a panic in it has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

async fn beat(running: Arc<Running>, stop: CancellationToken) {
    let mut told = false;
    loop {
        let heartbeat = running.heartbeat();
        metrics::gauge!("forgeplane_worker_held_attempts").set(heartbeat.holding.len() as f64);
        told |= heartbeat.draining;
        tokio::select! {
            () = stop.cancelled() => return,
            answer = running.link.heartbeat(heartbeat) => match answer {
                Ok(orders) => {
                    metrics::counter!("forgeplane_worker_heartbeats_total", "result" => "answered").increment(1);
                    running.take_orders(orders);
                }
                Err(error) => {
                    metrics::counter!("forgeplane_worker_heartbeats_total", "result" => "lost").increment(1);
                    tracing::warn!(%error, "a heartbeat was not answered");
                }
            }
        }
        let mut random = [0; 1];
        // Without randomness the pause is simply not jittered.
        let _ = getrandom::fill(&mut random);
        let jitter = 0.9 + f64::from(random[0]) / 255.0 * 0.2;
        tokio::select! {
            () = stop.cancelled() => return,
            () = running.draining.cancelled(), if !told => {}
            () = tokio::time::sleep(running.link.heartbeat.mul_f64(jitter)) => {}
        }
    }
}
