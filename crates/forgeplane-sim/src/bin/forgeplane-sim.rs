//! Runs schedules of the deterministic simulation and reports what came of them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use forgeplane_sim::simulation::{self, Counts, Schedule};
use tracing_subscriber::EnvFilter;

/// Runs the production coordinator and worker in a simulated world, one schedule per seed, and checks after each that
/// the records hold what the protocol promises and what really happened. The same seed gives the same schedule.
#[derive(Parser)]
#[command(name = "forgeplane-sim", version)]
struct Args {
    /// How many schedules.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// For about so many minutes instead, however many schedules that is.
    #[arg(long, conflicts_with = "seeds")]
    minutes: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads; each runs schedules of its own.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, std::num::NonZero::get))]
    threads: usize,
    /// Goes on after a violation, up to so many.
    #[arg(long, default_value_t = 1)]
    violations: usize,
    /// Shows what happens in a schedule, such as `debug` or `forgeplane_worker=trace`; for one seed.
    #[arg(long)]
    log: Option<String>,
}

/// What all schedules have come to.
#[derive(Default)]
struct Sum {
    schedules: u64,
    counts: Counts,
    attempts: u64,
    receipts: u64,
    compared: u64,
    most_starts: u32,
    simulated: Duration,
    failed: Vec<Schedule>,
}

impl Sum {
    fn add(&mut self, schedule: Schedule) {
        self.schedules += 1;
        self.counts += schedule.counts;
        self.attempts += schedule.attempts;
        self.receipts += schedule.receipts;
        self.compared += schedule.compared;
        self.most_starts = self.most_starts.max(schedule.most_starts);
        self.simulated += schedule.simulated;
        if !schedule.violations.is_empty() {
            self.failed.push(schedule);
        }
    }

    fn print(&self, took: Duration) {
        let per_minute = self.schedules as f64 * 60.0 / took.as_secs_f64();
        println!("{} schedules in {:.1} s, {per_minute:.0} per minute", self.schedules, took.as_secs_f64());
        println!("{:.1} days simulated", self.simulated.as_secs_f64() / 86_400.0);
        println!("{} crashes, {} of them power losses", self.counts.crashes, self.counts.power_losses);
        println!(
            "{} messages lost, {} delivered twice, {} commits with an unknown result",
            self.counts.losses, self.counts.duplicates, self.counts.unknown_commits
        );
        println!(
            "{} attempts, {} executions begun, {} receipts; at most {} starts per fence",
            self.attempts, self.counts.starts, self.receipts, self.most_starts
        );
        println!("{} invariants checked, {} schedules with a violation", self.compared, self.failed.len());
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(filter) = &args.log {
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(io::stderr)
            .without_time();
        subscriber.init();
    }
    match run(&args) {
        Ok(sum) if sum.failed.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the simulation cannot run: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> io::Result<Sum> {
    let began = Instant::now();
    let (next, stop) = (AtomicU64::new(args.from), AtomicBool::new(false));
    let seeds = args.minutes.map_or(args.seeds, |_| u64::MAX);
    let end = args.from.saturating_add(seeds);
    let time_is_up = || args.minutes.is_some_and(|minutes| began.elapsed().as_secs() >= minutes * 60);
    let (report, schedules) = mpsc::channel();
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            let (report, next, stop) = (report.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || report.send(simulation::run(seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(report);
        let mut told = Instant::now();
        for schedule in schedules {
            let schedule = match schedule {
                Ok(schedule) => schedule,
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            };
            if !schedule.violations.is_empty() {
                println!("seed {}:", schedule.seed);
                for violation in &schedule.violations {
                    println!("  {violation}");
                }
            }
            sum.add(schedule);
            if sum.failed.len() >= args.violations || time_is_up() {
                stop.store(true, Ordering::Relaxed);
            }
            if told.elapsed() > Duration::from_secs(60) {
                told = Instant::now();
                sum.print(began.elapsed());
            }
        }
        Ok(())
    })?;
    sum.print(began.elapsed());
    Ok(sum)
}
