//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Control plane for infrastructure runs.
#[derive(Debug, Parser)]
#[command(name = "forgeplane", version, about, max_term_width = 100)]
pub struct Cli {
    /// How to reach the coordinator.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How to reach the coordinator and how to print.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The coordinator's URL; without it, that of the `forgeplane dev` of the data directory
    #[arg(long, env = "FORGEPLANE_URL", global = true)]
    pub url: Option<String>,
    /// File that holds the API token
    #[arg(long, env = "FORGEPLANE_TOKEN_FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// Act as this user of the local `forgeplane dev`: admin, operator, approver
    #[arg(long = "as", value_name = "USER", global = true)]
    pub user: Option<String>,
    /// Data directory of the local `forgeplane dev`
    #[arg(long, env = "FORGEPLANE_DATA_DIR", default_value = ".forgeplane", global = true)]
    pub data_dir: PathBuf,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table, global = true)]
    pub output: Format,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people
    Table,
    /// JSON for scripts
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run coordinator, worker and API in this process, on SQLite, without services
    Dev(DevOptions),
    /// Templates
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Instances
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// Runs
    #[command(subcommand)]
    Run(RunCommand),
    /// Attempts, and what to do about those whose worker is missing
    #[command(subcommand)]
    Attempt(AttemptCommand),
    /// Approval records
    #[command(subcommand)]
    Approval(ApprovalCommand),
    /// Managed state
    #[command(subcommand)]
    State(StateCommand),
    /// Workers
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// The secret catalog
    #[command(subcommand)]
    Secret(SecretCommand),
    /// API tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Verify the evidence of a run offline
    Verify {
        /// Evidence file, as written by `run evidence`
        file: PathBuf,
        /// The coordinator key that you trust (`sha256:…`)
        #[arg(long)]
        coordinator_key: Option<String>,
        /// The worker key that you trust (`sha256:…`)
        #[arg(long)]
        worker_key: Option<String>,
    },
    /// Look for broken invariants in a coordinator's store, also while it runs
    Check(CheckOptions),
    /// Print a completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Options of `forgeplane check`: one of two stores.
#[derive(Debug, Args)]
#[group(required = true, multiple = false, id = "store")]
pub struct CheckOptions {
    /// SQLite store file, such as `.forgeplane/forgeplane.db`
    #[arg(long, value_name = "FILE", group = "store")]
    pub sqlite: Option<PathBuf>,
    /// PostgreSQL, at the URL in the environment variable FORGEPLANE_CHECK_POSTGRES_URL; a role that may read is enough
    #[arg(long, group = "store")]
    pub postgres: bool,
}

/// Options of `forgeplane dev`.
#[derive(Debug, Args)]
pub struct DevOptions {
    /// Data directory: database, sealed blobs, keys, tokens, worker identity
    #[arg(long, env = "FORGEPLANE_DATA_DIR", default_value = ".forgeplane")]
    pub data_dir: PathBuf,
    /// Address to listen on; only loopback addresses are allowed
    #[arg(long, env = "FORGEPLANE_LISTEN", default_value = "127.0.0.1:7780")]
    pub listen: std::net::SocketAddr,
    /// Pool of the built-in worker
    #[arg(long, env = "FORGEPLANE_WORKER_POOL_NAME", default_value = "default")]
    pub pool: String,
    /// User id that tools run as; without it, a free one is chosen
    #[arg(long, env = "FORGEPLANE_WORKER_IAC_UID")]
    pub iac_uid: Option<u32>,
    /// Group id that tools run as; without it, the user id
    #[arg(long, env = "FORGEPLANE_WORKER_IAC_GID")]
    pub iac_gid: Option<u32>,
    /// Directory for workspaces; every parent must be passable for the tools' user id
    #[arg(long, env = "FORGEPLANE_WORKER_WORKSPACE_ROOT")]
    pub workspace_root: Option<PathBuf>,
    /// Path of a tool, such as `tofu=/opt/tofu`; without it, tools are looked up in PATH
    #[arg(long = "tool", value_name = "TOOL=PATH")]
    pub tools: Vec<String>,
    /// UNSAFE: run tools as this user, without isolation. Only for local development
    #[arg(long)]
    pub unsafe_no_isolation: bool,
}

/// Templates.
#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// Push a directory as a new template version
    Push(Box<PushOptions>),
    /// List templates
    List(ListOptions),
    /// Show a template version
    Show {
        /// Name or id
        template: String,
        /// Version; the newest without it
        #[arg(long)]
        version: Option<u32>,
    },
}

/// Options of `template push`.
#[derive(Debug, Args)]
pub struct PushOptions {
    /// Directory with the configuration
    pub directory: PathBuf,
    /// Name; the directory's without it
    #[arg(long)]
    pub name: Option<String>,
    /// terraform, tofu or ansible
    #[arg(long)]
    pub tool: String,
    /// JSON Schema of the inputs; `schema.json` in the directory without it
    #[arg(long)]
    pub schema: Option<PathBuf>,
    /// Input default, `name=value`; values that are JSON are taken as JSON
    #[arg(long = "default", value_name = "NAME=VALUE")]
    pub defaults: Vec<String>,
    /// Pool that runs need
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// Playbook of an ansible template
    #[arg(long)]
    pub entrypoint: Option<String>,
    /// Execution timeout, seconds
    #[arg(long, default_value_t = 3600)]
    pub timeout: u64,
    /// Longest timeout a run may ask for, seconds
    #[arg(long)]
    pub max_timeout: Option<u64>,
    /// How long the tool may print nothing before it is interrupted, seconds
    #[arg(long)]
    pub no_output_timeout: Option<u64>,
    /// How long a run may wait in the queue, seconds
    #[arg(long)]
    pub queue_timeout: Option<u64>,
    /// Time between SIGINT and SIGKILL, seconds
    #[arg(long, default_value_t = 60)]
    pub cancel_grace: u64,
    /// How many reviewers must approve changes; 0 for none
    #[arg(long, default_value_t = 1)]
    pub approvals: u32,
    /// Let requesters approve their own runs
    #[arg(long)]
    pub allow_self_approval: bool,
    /// Seconds until an undecided approval expires
    #[arg(long)]
    pub approval_expires: Option<u64>,
}

/// Paging.
#[derive(Debug, Args)]
pub struct ListOptions {
    /// Go on after this cursor
    #[arg(long)]
    pub after: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50)]
    pub limit: usize,
}

/// Instances.
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// Create an instance of a template
    Create {
        /// Name
        name: String,
        /// Template name or id
        #[arg(long)]
        template: String,
        /// Template version; the newest without it
        #[arg(long)]
        template_version: Option<u32>,
        /// Input, `name=value`; values that are JSON are taken as JSON
        #[arg(long = "input", value_name = "NAME=VALUE")]
        inputs: Vec<String>,
        /// Secret binding, `/path=secret-name`
        #[arg(long = "secret", value_name = "/PATH=SECRET")]
        secrets: Vec<String>,
        /// Pool override
        #[arg(long)]
        pool: Option<String>,
    },
    /// List instances
    List(ListOptions),
    /// Show an instance with its outputs
    Show {
        /// Name or id
        instance: String,
    },
}

/// Runs.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Create a run
    Create {
        /// Instance name or id
        instance: String,
        /// plan, destroy, plan-only, preview, teardown or execute
        operation: String,
        /// Plan the removal of everything (with `plan`)
        #[arg(long)]
        destroy: bool,
        /// `plan` or `perform` (with `destroy`)
        #[arg(long)]
        mode: Option<String>,
        /// Input over the instance's, `name=value`
        #[arg(long = "input", value_name = "NAME=VALUE")]
        inputs: Vec<String>,
        /// Execution timeout, seconds
        #[arg(long)]
        timeout: Option<u64>,
        /// -100 to 100; higher runs first
        #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
        priority: i32,
        /// The same key with the same request gives the same run
        #[arg(long)]
        idempotency_key: Option<String>,
        /// Follow the run to its end
        #[arg(short, long)]
        wait: bool,
    },
    /// List runs, newest first
    List {
        /// Only this status
        #[arg(long)]
        status: Option<String>,
        /// Only this instance
        #[arg(long)]
        instance: Option<String>,
        /// Paging
        #[command(flatten)]
        page: ListOptions,
    },
    /// Show a run
    Show {
        /// Run id
        run: String,
    },
    /// Follow a run to its end; exit code 1 if it does not succeed
    Wait {
        /// Run id
        run: String,
    },
    /// Print the log of a run
    Logs {
        /// Run id
        run: String,
        /// Follow it until the attempt ends
        #[arg(short, long)]
        follow: bool,
        /// Attempt number; the newest without it
        #[arg(long)]
        attempt: Option<u32>,
    },
    /// Cancel a run
    Cancel {
        /// Run id
        run: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
        /// Follow the run to its end
        #[arg(short, long)]
        wait: bool,
    },
    /// Try a run again under the same id
    Requeue {
        /// Run id
        run: String,
        /// Follow the run to its end
        #[arg(short, long)]
        wait: bool,
    },
    /// Make an apply out of a succeeded plan
    Promote {
        /// The plan's run id
        run: String,
        /// Follow the new run to its end
        #[arg(short, long)]
        wait: bool,
    },
    /// Say why a run is where it is
    Explain {
        /// Run id
        run: String,
    },
    /// Print the plan of a succeeded plan run
    Plan {
        /// Run id
        run: String,
    },
    /// List the events of a run
    Events {
        /// Run id
        run: String,
    },
    /// Write the evidence of how a run ended
    Evidence {
        /// Run id
        run: String,
        /// File to write; standard output without it
        #[arg(long)]
        file: Option<PathBuf>,
    },
}

/// Approval records.
#[derive(Debug, Subcommand)]
pub enum ApprovalCommand {
    /// List approval records, newest first
    List {
        /// pending, approved, rejected, expired or withdrawn
        #[arg(long)]
        status: Option<String>,
        /// Paging
        #[command(flatten)]
        page: ListOptions,
    },
    /// Show an approval record
    Show {
        /// Approval id
        approval: String,
    },
    /// Approve
    Approve {
        /// Approval id
        approval: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Reject; the run is canceled
    Reject {
        /// Approval id
        approval: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
}

/// Attempts.
#[derive(Debug, Subcommand)]
pub enum AttemptCommand {
    /// List attempts that are not closed
    List {
        /// Only those whose worker is missing: their outcome is not known
        #[arg(long)]
        unresolved: bool,
    },
    /// Show an attempt with everything that is known about its execution
    Show {
        /// Attempt id
        attempt: String,
    },
    /// Decide how an unresolved execution ended; `succeeded` waits for a second person
    Resolve {
        /// Attempt id
        attempt: String,
        /// failed, canceled or succeeded
        #[arg(long)]
        outcome: String,
        /// Why
        #[arg(long)]
        reason: String,
        /// What you assert, such as "worker host is off or wiped"
        #[arg(long = "assert", value_name = "TEXT")]
        asserted: Vec<String>,
        /// For `succeeded`: the state generation that holds what the execution created
        #[arg(long)]
        generation: Option<u64>,
    },
    /// Confirm, as a second person, that an unresolved execution succeeded
    Confirm {
        /// Attempt id
        attempt: String,
    },
    /// Deliver a signed outcome from a worker's disk: an envelope, or an entry of its journal
    Submit {
        /// Attempt id
        attempt: String,
        /// The file
        file: PathBuf,
    },
}

/// Managed state.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// List the generations of an instance's state, newest first
    List {
        /// Instance name or id
        instance: String,
        /// Paging
        #[command(flatten)]
        page: ListOptions,
    },
    /// Print a state document; it contains secrets
    Pull {
        /// Instance name or id
        instance: String,
        /// Generation; the current one without it
        #[arg(long)]
        generation: Option<u64>,
    },
}

/// Workers.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// List workers
    List,
    /// Make a token that enrolls one worker, once
    Enroll {
        /// The pool that the worker joins
        #[arg(long)]
        pool: String,
        /// Seconds until the token ends, at most 3600
        #[arg(long, value_name = "SECONDS")]
        expires: Option<u64>,
    },
    /// Let a worker finish and take nothing new
    Drain {
        /// Name or id
        worker: String,
    },
    /// Let a worker take work again
    Reactivate {
        /// Name or id
        worker: String,
    },
    /// Have a worker replace its signing key, once nothing depends on the old one
    RotateKey {
        /// Name or id
        worker: String,
    },
    /// Accept that the store has lost the attempts which a worker names and the store does not know; scheduling goes on
    AcceptLoss {
        /// Name or id
        worker: String,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// Kill a worker's credential
    Disconnect {
        /// Name or id
        worker: String,
        /// Its keys may be in the wrong hands: nothing they sign ends an attempt any more
        #[arg(long)]
        compromised: bool,
    },
}

/// The secret catalog.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Store a new version of a secret; the value is read from a file or standard input, never from arguments
    Put {
        /// Name
        name: String,
        /// File with the value; standard input without it
        #[arg(long)]
        file: Option<PathBuf>,
        /// Instance that may use it
        #[arg(long = "for", value_name = "INSTANCE")]
        approved_for: Vec<String>,
    },
    /// List secrets: names and versions
    List(ListOptions),
}

/// API tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token; it is shown once
    Create {
        /// Principal's name
        name: String,
        /// viewer, operator, approver or admin
        #[arg(long)]
        role: String,
        /// Seconds until it expires
        #[arg(long)]
        expires: Option<u64>,
    },
}
