//! The policy port: who may do what, and what needs approval. Denies by default.

use crate::model::{ApprovalPolicy, Caller, Instance, Operation, Role, TemplateVersion};

/// Something a caller may or may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Read templates, instances, runs, logs, approvals, events, workers.
    Read,
    /// Push templates.
    TemplateWrite,
    /// Create instances.
    InstanceWrite,
    /// Create, cancel, requeue and promote runs.
    RunWrite,
    /// Decide approvals.
    ApprovalDecide,
    /// Download plan files and plan JSON, which contain secrets.
    PlanReadSensitive,
    /// Download state documents, which contain secrets.
    StateRead,
    /// Restore state, break locks.
    StateWrite,
    /// Store secrets.
    SecretWrite,
    /// Drain, reactivate, disconnect and enroll workers.
    WorkerAdmin,
    /// Resolve unresolved executions.
    RunResolve,
    /// Create and revoke tokens.
    TokenAdmin,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Self; 12] = [
        Self::Read,
        Self::TemplateWrite,
        Self::InstanceWrite,
        Self::RunWrite,
        Self::ApprovalDecide,
        Self::PlanReadSensitive,
        Self::StateRead,
        Self::StateWrite,
        Self::SecretWrite,
        Self::WorkerAdmin,
        Self::RunResolve,
        Self::TokenAdmin,
    ];

    /// The permission in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::TemplateWrite => "template.write",
            Self::InstanceWrite => "instance.write",
            Self::RunWrite => "run.write",
            Self::ApprovalDecide => "approval.decide",
            Self::PlanReadSensitive => "plan.read_sensitive",
            Self::StateRead => "state.read",
            Self::StateWrite => "state.write",
            Self::SecretWrite => "secret.write",
            Self::WorkerAdmin => "worker.admin",
            Self::RunResolve => "run.resolve",
            Self::TokenAdmin => "token.admin",
        }
    }
}

/// What a run's admission knows when it asks whether approval is needed.
#[derive(Debug)]
pub struct ApprovalQuestion<'a> {
    /// Who asks.
    pub requester: &'a Caller,
    /// For what.
    pub operation: &'a Operation,
    /// Against which instance.
    pub instance: &'a Instance,
    /// The template version, with its own policy.
    pub template: &'a TemplateVersion,
}

/// Decides permissions and approvals. Embedders bring their own; [`DefaultPolicy`] is the reference.
pub trait Policy: Send + Sync + 'static {
    /// Whether the caller may do this in their project.
    fn permits(&self, caller: &Caller, permission: Permission) -> bool {
        role_permits(caller.role, permission)
    }

    /// The approval policy for a run; `required: 0` means none is needed. Asked only for operations that
    /// change infrastructure.
    fn approval(&self, question: &ApprovalQuestion<'_>) -> ApprovalPolicy {
        question.template.approval.clone()
    }
}

/// The role table of the reference deployment.
#[must_use]
pub const fn role_permits(role: Role, permission: Permission) -> bool {
    use Permission as P;
    match role {
        Role::Admin => true,
        Role::Viewer => matches!(permission, P::Read),
        Role::Approver => matches!(permission, P::Read | P::ApprovalDecide | P::PlanReadSensitive),
        Role::Operator => matches!(
            permission,
            P::Read | P::TemplateWrite | P::InstanceWrite | P::RunWrite | P::StateRead | P::SecretWrite
        ),
    }
}

/// Roles as in [`role_permits`], approval as the template says.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultPolicy;

impl Policy for DefaultPolicy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_do_not_approve_and_approvers_do_not_operate() {
        assert!(!role_permits(Role::Operator, Permission::ApprovalDecide));
        assert!(!role_permits(Role::Approver, Permission::RunWrite));
        assert!(!role_permits(Role::Operator, Permission::RunResolve));
        assert_eq!(Permission::ALL.iter().filter(|p| role_permits(Role::Viewer, **p)).count(), 1);
    }
}
