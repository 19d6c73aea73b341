//! What each [`Constraint`] means.

use crate::model::Record;
use crate::ports::Constraint;

/// A value that at most one record may have at a time.
pub(super) type Claim = (Constraint, String);

/// The values a record claims for itself while it is stored as it is. Two records that claim the same value
/// cannot be stored together; that is all a constraint says.
pub(super) fn claims(record: &Record) -> Vec<Claim> {
    use Constraint as C;
    match record {
        Record::Project(it) => vec![(C::ProjectName, it.name.to_string())],
        Record::Token(it) => vec![(C::TokenHash, it.hash.to_string())],
        Record::Template(it) => vec![(C::TemplateName, format!("{}/{}", it.project, it.name))],
        Record::Instance(it) => vec![(C::InstanceName, format!("{}/{}", it.project, it.name))],
        Record::Secret(it) => vec![(C::SecretName, format!("{}/{}", it.project, it.name))],
        Record::Worker(it) => vec![(C::WorkerName, it.name.to_string())],
        Record::Enrollment(it) => vec![(C::EnrollmentHash, it.hash.to_string())],
        Record::StateObject(it) => vec![(C::StateObjectPerInstance, it.instance.to_string())],
        Record::Run(it) => match &it.plan {
            Some(plan) if !it.status.is_terminal() => vec![(C::LivePromotion, plan.run.to_string())],
            _ => vec![],
        },
        Record::Attempt(it) => {
            // For good: neither a fence nor a number is ever used again.
            let mut claims = vec![
                (C::Fence, it.fence.to_string()),
                (C::AttemptNumber, format!("{}/{}", it.run, it.number)),
            ];
            // Until it closes.
            if it.is_open() {
                claims.push((C::OpenAttemptPerRun, it.run.to_string()));
                claims.push((C::OpenAttemptPerSlot, format!("{}/{}", it.worker, it.slot)));
                claims.extend(it.exclusive.map(|instance| (C::ExclusiveInstance, instance.to_string())));
            }
            claims
        }
        Record::TemplateVersion(_)
        | Record::Snapshot(_)
        | Record::Approval(_)
        | Record::WorkerContact(_)
        | Record::WorkerKey(_)
        | Record::StateGeneration(_)
        | Record::OrphanState(_)
        | Record::Artifact(_)
        | Record::PlanArtifact(_)
        | Record::Receipt(_)
        | Record::LateEvidence(_)
        | Record::OperatorDecision(_)
        | Record::Idempotency(_)
        | Record::LogChunk(_) => vec![],
    }
}
