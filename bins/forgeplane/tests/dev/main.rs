//! `forgeplane dev` and the command line as people use them: real processes, a real Terraform, real signals.

mod commands;
mod crash;
mod refusals;
mod support;
