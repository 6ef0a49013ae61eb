//! `ledger`: who ran on the VMs' CPUs, when and for how long, and whether the record of it is what was written.

mod account;
mod page;
mod proof;
mod rows;
mod source;
mod when;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use stelia_ledger::day::Month;

use crate::shared::daemon::{Client, Failure, is_glob, vms};
use crate::shared::kernel::Roots;
use crate::shared::output::{self, OutputOptions};
pub(super) use account::Brief;
pub use page::page_of;
use proof::Keys;
pub(super) use proof::summary;
use source::Source;
pub(super) use source::{last_day, since};
use when::When;

/// The account of one VM or of all; or `verify`, `key`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LedgerOptions {
    /// Show only this VM, which may have ended, given as namespace/name, name or UID; with a pattern with *, ?
    /// or [a-z], show one line for each VM that matches. Default: all
    #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
    vm: Option<String>,
    /// Start of the period (UTC): 2026-10-01, "2026-10-01 12:30", 2026-10, today, yesterday, month (the first day of this month) or
    /// -7d. Default: the beginning of the ledger files
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, value_parser = parse_when)]
    since: Option<When>,
    /// End of the period (UTC), in the forms of --since. A day or a month means its first instant. Default: now
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, value_parser = parse_when)]
    until: Option<When>,
    /// Show this month (UTC), such as 2026-10
    #[arg(long, value_name = "MONTH", value_parser = parse_month, conflicts_with_all = ["since", "until"])]
    month: Option<Month>,
    /// Write a report on one VM to standard output: a self-contained HTML page that prints well. Without --since, --until or --month, it
    /// covers this month
    #[arg(long, requires = "vm")]
    html: bool,
    /// Count for this long, such as 60s, which tasks and interrupts run on the VM's CPUs, and print them
    #[arg(long, value_name = "TIME", requires = "vm", value_parser = parse_span,
          conflicts_with_all = ["since", "until", "month", "html", "directory"])]
    watch: Option<Duration>,
    /// Read copied ledger files in this directory. Does not need the daemon
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(subcommand)]
    about: Option<About>,
}

/// What is asked of the ledger itself.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
enum About {
    /// Verify that no line of the ledger was modified after it was written
    ///
    /// Checks the chain of hashes over all lines and the signature of each day, and prints up to which entry a key or an expected entry
    /// verifies the ledger. The exit code is 1 if there is a fault, and with --key or --expect also if these verify no entry or not every
    /// day that has ended. Cannot show what root changed before it was written.
    Verify {
        /// Verify copied ledger files in this directory. Does not need the daemon
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
        /// The public key that must have signed, as `ledger key` printed it on the node. May be repeated. Without it, the keys named in
        /// the copy are used, which prove nothing
        #[arg(long, value_name = "KEY", requires = "directory", value_parser = source::key)]
        key: Vec<String>,
        /// An entry that is known from a report, a metric or a signal. It must exist and have this hash. Without it, missing entries at the
        /// end go unnoticed
        #[arg(long, value_name = "NUMBER:HASH", requires = "directory", value_parser = source::expected)]
        expect: Option<source::Expected>,
    },
    /// Print the public key with which this node signs, in base64
    Key,
}

fn parse_when(text: &str) -> Result<When, String> {
    when::when(text, output::now())
}

fn parse_month(text: &str) -> Result<Month, String> {
    match text {
        "month" | "this" => Some(Month::of(output::now())),
        text => Month::parse(text),
    }
    .ok_or_else(|| "expected a month, such as 2026-10".to_owned())
}

/// 1 s to 10 min, as the daemon takes it.
fn parse_span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).ok();
    let fits = |span: &Duration| (1..=600).contains(&span.as_secs());
    span.filter(fits)
        .ok_or_else(|| "expected 1s to 10min, such as 60s".to_owned())
}

impl LedgerOptions {
    /// Whether what is printed is a document and no answer to read on a terminal.
    pub(crate) fn is_document(&self) -> bool {
        self.html
    }

    /// Whether `-o name` makes sense.
    pub(crate) fn is_about_vms(&self) -> bool {
        self.about.is_none() && !self.html && self.watch.is_none()
    }

    /// From when and until when; 0: everything there is, now.
    ///
    /// # Errors
    /// It begins in the future, or ends before it begins.
    fn times(&self, now: u64) -> Result<(u64, u64), Failure> {
        let month = match (self.month, self.since, self.until) {
            (None, None, None) if self.html => Some(Month::of(now)),
            (month, ..) => month,
        };
        let since = month.map(Month::begins).or(self.since.map(|at| at.0)).unwrap_or(0);
        let until = month.map(Month::ends).or(self.until.map(|at| at.0)).unwrap_or(now);
        if since > now {
            return Err(Failure::Usage("--since is in the future".to_owned()));
        }
        if since >= until {
            return Err(Failure::Usage("--since is not before --until".to_owned()));
        }
        Ok((since, if until >= now { 0 } else { until }))
    }
}

/// Returns what is to be printed.
///
/// # Errors
/// [`Failure::Partial`] where the ledger files have faults, any other [`Failure`] where there is no answer.
pub(crate) async fn run(
    asked: &LedgerOptions,
    client: impl AsyncFnOnce() -> Result<Client, Failure>,
    roots: &Roots,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    match &asked.about {
        Some(About::Key) => return output_options.print(&proof::key(&client().await?).await?),
        Some(About::Verify { directory, key, expect }) => {
            let proof = match directory {
                Some(directory) => {
                    let keys = if key.is_empty() { Keys::Copy } else { Keys::Given };
                    proof::Proof::of(source::verdict(directory, key, expect.as_ref())?, keys)
                }
                None => proof::Proof::of(Source::Daemon(client().await?).verdict().await?, Keys::Node),
            };
            return output_options.print(&proof);
        }
        None => {}
    }
    if let (Some(vm), Some(time)) = (&asked.vm, asked.watch) {
        return output_options.print(&account::watch(&client().await?, vm, time).await?);
    }
    let (since, until) = asked.times(output::now())?;
    let source = match &asked.directory {
        Some(directory) => Source::Copy(directory),
        None => Source::Daemon(client().await?),
    };
    match &asked.vm {
        None => output_options.print(&account::All(source.all(since, until).await?)),
        Some(vm) if asked.html => page::html(&source, vm, (since, until), roots).await,
        Some(pattern) if is_glob(pattern) => output_options.print(&source.fitting(pattern, since, until).await?),
        Some(vm) => output_options.print(&source.one(vm, since, until).await?),
    }
}
