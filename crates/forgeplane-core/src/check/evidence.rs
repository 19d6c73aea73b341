//! I10: receipts verify under the key that is pinned to their attempt, and repeat what it is.

use super::Findings;
use crate::digest::Digest;
use crate::evidence::{Conclusion, Envelope, public_key_from_hex};
use crate::model::*;
use crate::ports::{Store, StoreError, StoreExt as _};

pub(super) async fn check(
    store: &dyn Store,
    attempt: &Attempt,
    receipt: &Receipt,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let subject = format!("receipt of attempt {}", attempt.id);
    let key = store.get_as::<WorkerKey>(receipt.key).await?;
    if let Err(what) = holds(attempt, receipt, key.as_deref()) {
        findings.expect(false, "I10", &subject, what);
    }
    let same = (receipt.run, receipt.project) == (attempt.run, attempt.project);
    findings.expect(same, "I16", &subject, "names another run or project than the attempt");
    Ok(())
}

fn holds(attempt: &Attempt, receipt: &Receipt, key: Option<&WorkerKey>) -> Result<(), String> {
    let key = key.ok_or_else(|| format!("key {} is not kept", receipt.key))?;
    if key.worker != attempt.worker || (attempt.claim.is_some() && key.id != attempt.key) {
        return Err("is not signed by the key that is pinned to the attempt".into());
    }
    if Digest::of(receipt.envelope.as_bytes()) != receipt.envelope_digest {
        return Err("the envelope is not the one of the receipt's digest".into());
    }
    let public_key = public_key_from_hex(&key.public_key).map_err(|e| e.to_string())?;
    let envelope = Envelope::from_json(&receipt.envelope).map_err(|e| e.to_string())?;
    let (fence, nonce, claimed) = match Conclusion::verify(&envelope, &public_key) {
        Ok(Conclusion::Outcome(it)) => {
            if (it.snapshot, it.plan) != (attempt.snapshot, attempt.plan) {
                return Err("the outcome is of another snapshot or plan".into());
            }
            if it.outcome != receipt.outcome {
                return Err("the receipt tells another outcome".into());
            }
            (it.fence, Some(it.nonce), true)
        }
        Ok(Conclusion::NotStarted(it)) => (it.fence, it.nonce, attempt.claim.is_some()),
        Err(error) => return Err(error.to_string()),
    };
    if fence != attempt.fence {
        return Err("the statement is of another fence".into());
    }
    if claimed && nonce != attempt.claim.as_ref().map(|claim| claim.nonce) {
        return Err("the statement is of another claim".into());
    }
    Ok(())
}
