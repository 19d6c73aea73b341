//! Whether log frames continue the log.

use crate::id::WorkerId;
use crate::model::{Attempt, LogChunk};
use crate::ports::LogAppend;
use crate::refusal::{Code, Refusal};

/// The chunks to store for an append, given the stored end; empty if all of it is stored already.
/// Frames that are stored are skipped by offset, so a repeated append has no effect.
///
/// # Errors
/// Another worker's attempt or claim; [`Code::LogGap`] when bytes are missing in between.
pub fn append(
    attempt: &Attempt,
    worker: WorkerId,
    append: LogAppend,
    stored: u64,
) -> Result<Vec<LogChunk>, Refusal> {
    super::claim::own_claim(attempt, worker, append.claim)?;
    if append.offset > stored {
        return Err(Refusal::new(
            Code::LogGap,
            format!("the log has {stored} bytes, but the frames start at byte {}", append.offset),
        )
        .way_out(format!("send again from byte {stored}")));
    }
    let mut offset = append.offset;
    let mut chunks = Vec::new();
    for mut frame in append.frames {
        let end = offset + frame.bytes.len() as u64;
        if end > stored {
            let known = usize::try_from(stored.saturating_sub(offset)).unwrap_or(usize::MAX);
            let start = offset.max(stored);
            frame.bytes = frame.bytes.slice(known..);
            chunks.push(LogChunk {
                attempt: attempt.id,
                run: attempt.run,
                project: attempt.project,
                offset: start,
                frame,
            });
        }
        offset = end;
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::*;

    fn attempt() -> Attempt {
        let now = jiff::Timestamp::UNIX_EPOCH;
        Attempt {
            id: crate::id::AttemptId::new(now, [1; 10]),
            run: crate::id::RunId::new(now, [1; 10]),
            project: crate::id::ProjectId::new(now, [1; 10]),
            number: 1,
            fence: Fence(1),
            worker: WorkerId::new(now, [1; 10]),
            slot: 0,
            key: crate::digest::Digest::of(b"key"),
            state: AttemptState::Claimed,
            exclusive: None,
            state_object: None,
            base_generation: 0,
            snapshot: crate::digest::Digest::of(b"snapshot"),
            plan: None,
            offered_at: now,
            offer_expires_at: now,
            publications: 1,
            published_at: now,
            claim: Some(Claim { nonce: Nonce([1; 16]), at: now, incarnation: 1 }),
            deadline: None,
            unresolved_since: None,
            proposal: None,
            deadline_exceeded: false,
            stop: None,
            closed_at: None,
            closing: None,
            last_generation: None,
        }
    }

    fn frames(attempt: &Attempt, offset: u64, texts: &[&'static str]) -> LogAppend {
        LogAppend {
            claim: crate::ports::ClaimRef {
                attempt: attempt.id,
                fence: attempt.fence,
                nonce: Nonce([1; 16]),
            },
            offset,
            frames: texts
                .iter()
                .map(|t| LogFrame {
                    stream: LogStream::Stdout,
                    at: jiff::Timestamp::UNIX_EPOCH,
                    bytes: bytes::Bytes::from_static(t.as_bytes()),
                })
                .collect(),
        }
    }

    #[test]
    fn f8_a_replay_stores_nothing_and_an_overlap_only_the_rest() {
        let attempt = attempt();
        let all = |stored, offset| -> Vec<(u64, String)> {
            append(&attempt, attempt.worker, frames(&attempt, offset, &["hello ", "world"]), stored)
                .unwrap()
                .into_iter()
                .map(|c| (c.offset, String::from_utf8(c.frame.bytes.to_vec()).unwrap()))
                .collect()
        };
        assert_eq!(all(0, 0), [(0, "hello ".to_owned()), (6, "world".to_owned())]);
        assert_eq!(all(11, 0), []);
        assert_eq!(all(8, 0), [(8, "rld".to_owned())]);
    }

    #[test]
    fn f8_a_gap_and_a_foreign_claim_are_refused() {
        let attempt = attempt();
        let refusal = append(&attempt, attempt.worker, frames(&attempt, 5, &["x"]), 4).unwrap_err();
        assert_eq!(refusal.code, Code::LogGap);
        let mut foreign = frames(&attempt, 0, &["x"]);
        foreign.claim.nonce = Nonce([2; 16]);
        assert_eq!(append(&attempt, attempt.worker, foreign, 0).unwrap_err().code, Code::FenceMismatch);
    }
}
