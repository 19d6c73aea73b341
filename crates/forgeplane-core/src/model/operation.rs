//! What a run does and with which tool (`spec.md` §2).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An infrastructure tool label; workers advertise the same labels as capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// Terraform.
    Terraform,
    /// OpenTofu; `opentofu` is an accepted alias.
    #[serde(alias = "opentofu")]
    Tofu,
    /// Ansible.
    Ansible,
    /// Helm, a label without a shipped executor.
    Helm,
    /// Pulumi, a label without a shipped executor.
    Pulumi,
    /// Bash, a label without a shipped executor.
    Bash,
}

/// A label that names no tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown tool label; known labels are terraform, tofu (alias opentofu), ansible, helm, pulumi, bash")]
pub struct UnknownTool;

impl Tool {
    /// Every tool label.
    pub const ALL: [Self; 6] =
        [Self::Terraform, Self::Tofu, Self::Ansible, Self::Helm, Self::Pulumi, Self::Bash];

    /// The canonical label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Terraform => "terraform",
            Self::Tofu => "tofu",
            Self::Ansible => "ansible",
            Self::Helm => "helm",
            Self::Pulumi => "pulumi",
            Self::Bash => "bash",
        }
    }

    /// Whether Forgeplane manages state for instances of this tool.
    #[must_use]
    pub const fn has_managed_state(self) -> bool {
        matches!(self, Self::Terraform | Self::Tofu)
    }

    /// The operation labels the tool supports, for error messages and documentation.
    #[must_use]
    pub const fn operations(self) -> &'static [&'static str] {
        if self.has_managed_state() {
            &["plan", "apply", "destroy", "plan-only", "preview", "teardown"]
        } else {
            &["execute"]
        }
    }

    /// Whether the tool supports `operation` (`spec.md` §2).
    #[must_use]
    pub fn supports(self, operation: &Operation) -> bool {
        self.operations().contains(&operation.label())
    }
}

impl FromStr for Tool {
    type Err = UnknownTool;

    fn from_str(text: &str) -> Result<Self, UnknownTool> {
        if text == "opentofu" {
            return Ok(Self::Tofu);
        }
        Self::ALL.into_iter().find(|tool| tool.label() == text).ok_or(UnknownTool)
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Whether `destroy` only plans the removal or performs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestroyMode {
    /// Makes a promotable plan of the removal.
    Plan,
    /// Removes.
    Perform,
}

/// What a run does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case")]
pub enum Operation {
    /// Makes a reusable plan artifact.
    Plan {
        /// Plans the removal of everything.
        #[serde(default)]
        destroy: bool,
    },
    /// Applies exactly one approved plan artifact; exists only as a promotion.
    Apply,
    /// Plans or performs the removal of all managed resources.
    Destroy {
        /// Plan or perform.
        mode: DestroyMode,
    },
    /// Shows changes; publishes nothing that could be promoted.
    PlanOnly,
    /// Shows changes without a lock and without writing state.
    Preview,
    /// Removes the resources and retires the instance.
    Teardown,
    /// Runs a playbook.
    Execute,
}

impl Operation {
    /// The label used in APIs, URLs and messages.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Plan { .. } => "plan",
            Self::Apply => "apply",
            Self::Destroy { .. } => "destroy",
            Self::PlanOnly => "plan-only",
            Self::Preview => "preview",
            Self::Teardown => "teardown",
            Self::Execute => "execute",
        }
    }

    /// Whether the run changes infrastructure and is exclusive on its instance.
    #[must_use]
    pub const fn changes_infrastructure(&self) -> bool {
        matches!(
            self,
            Self::Apply | Self::Destroy { mode: DestroyMode::Perform } | Self::Teardown | Self::Execute
        )
    }

    /// Whether the run writes managed state.
    #[must_use]
    pub const fn writes_state(&self) -> bool {
        self.changes_infrastructure() && !matches!(self, Self::Execute)
    }

    /// Whether a successful run publishes an artifact that can be promoted.
    #[must_use]
    pub const fn publishes_plan(&self) -> bool {
        matches!(self, Self::Plan { .. } | Self::Destroy { mode: DestroyMode::Plan })
    }

    /// Whether the tool is to plan or perform the removal of everything.
    #[must_use]
    pub const fn removes_everything(&self) -> bool {
        matches!(self, Self::Plan { destroy: true } | Self::Destroy { .. } | Self::Teardown)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())?;
        match self {
            Self::Plan { destroy: true } => f.write_str(" (destroy)"),
            Self::Destroy { mode: DestroyMode::Plan } => f.write_str(" (plan)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_capability_labels_are_exact_apart_from_the_alias() {
        assert_eq!("opentofu".parse(), Ok(Tool::Tofu));
        for bad in ["OpenTofu ", "tofu\0", "Terraform", "", "chef"] {
            assert_eq!(bad.parse::<Tool>(), Err(UnknownTool), "{bad:?} was accepted");
        }
    }
}
