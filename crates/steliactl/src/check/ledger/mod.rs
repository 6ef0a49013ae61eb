//! `ledger`: who ran on the VMs' CPUs, when and for how long, and whether the record of it is what was written.

mod brief;
mod calendar;
mod html;
mod offline;
mod owner;
mod proof;
mod query;
mod report;
mod summary;
mod text;
mod watch;
mod when;
mod words;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use serde::Serialize;
use stelia_ledger::account::Account;
use stelia_ledger::day::Month;

use crate::shared::daemon::{Client, Failure, Pod, VmPattern, is_glob, perhaps_meant, vms};
use crate::shared::kernel::Roots;
use crate::shared::output::{self, OutputOptions, Render, TextStyle};
pub(super) use brief::Brief;
pub(super) use query::{last_day, since};
pub use report::page_of;
pub(super) use summary::summary;
use when::When;

/// The account of one VM or of all; or `verify`, `key`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LedgerOptions {
    /// Show only this VM, which may have ended, given as namespace/name, name, UID or the beginning of the UID; with a pattern with *, ?
    /// or [a-z], show one line for each VM that fits. Default: all
    #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
    vm: Option<String>,
    /// Start of the period (UTC): 2026-10-01, "2026-10-01 12:30", 2026-10, today, yesterday, month (the first day of this month) or
    /// -7d. Default: the beginning of the ring
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, value_parser = parse_when)]
    since: Option<When>,
    /// End of the period (UTC), in the forms of --since. A day or a month means its first instant. Default: now
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, value_parser = parse_when)]
    until: Option<When>,
    /// Show this month (UTC), such as 2026-10
    #[arg(long, value_name = "MONTH", value_parser = parse_month, conflicts_with_all = ["since", "until"])]
    month: Option<Month>,
    /// Write a report on one VM to standard output: html, a self-contained page that prints well, or json, the same data for
    /// programs. Without --since, --until or --month, the report covers this month
    #[arg(long, value_name = "FORM", requires = "vm", value_enum, hide_possible_values = true)]
    report: Option<Kind>,
    /// Count for this long, such as 60s, which tasks and interrupts run on the VM's CPUs, and print them
    #[arg(long, value_name = "TIME", requires = "vm", value_parser = parse_span,
          conflicts_with_all = ["since", "until", "month", "report", "directory"])]
    watch: Option<Duration>,
    /// Read a copied ring in this directory. Does not need the daemon
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(subcommand)]
    about: Option<About>,
}

/// What is asked of the ledger itself.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
enum About {
    /// Check that no line of the ring was changed after it was written
    ///
    /// Checks the chain of hashes over all lines and the signature of each day's head, and prints up to which entry a key or a known
    /// entry vouches for the ring. The exit code is 1 if there is a fault, and with --key or --expect also if these vouch for no entry or
    /// not for a day that has ended. The check cannot show what root changed before it was written.
    Verify {
        /// Check a copied ring in this directory. Does not need the daemon
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
        /// The public key with which the heads must be signed, as `ledger key` printed it on the node. May be repeated. Without it,
        /// the keys that the copy itself names are used, and they vouch for nothing
        #[arg(long, value_name = "KEY", requires = "directory", value_parser = offline::key)]
        key: Vec<String>,
        /// An entry that is known from a report, a metric or a signal. It must exist in the ring and have this hash. Without it, missing
        /// entries at the end of the ring go unnoticed
        #[arg(long, value_name = "NUMBER:HASH", requires = "directory", value_parser = offline::expected)]
        expect: Option<offline::Expected>,
    },
    /// Print the public key with which this node signs, in base64
    Key,
}

/// The form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A page
    Html,
    /// JSON
    Json,
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
    let span = when::span(text).map(Duration::from_micros);
    let fits = |span: &Duration| (1..=600).contains(&span.as_secs());
    span.filter(fits)
        .ok_or_else(|| "expected 1s to 10min, such as 60s".to_owned())
}

impl LedgerOptions {
    /// Whether what is printed is a document and no answer to read on a terminal.
    pub(crate) fn is_document(&self) -> bool {
        self.report.is_some()
    }

    /// Whether `-o name` makes sense.
    pub(crate) fn is_about_vms(&self) -> bool {
        self.about.is_none() && self.report.is_none() && self.watch.is_none()
    }

    /// From when and until when; 0: everything there is, now.
    ///
    /// # Errors
    /// It begins in the future, or ends before it begins.
    fn times(&self, now: u64) -> Result<(u64, u64), Failure> {
        let month = match (self.month, self.report, self.since, self.until) {
            (None, Some(_), None, None) => Some(Month::of(now)),
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

/// A VM's account, with the names that every answer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct VmAccount {
    #[serde(flatten)]
    pub pod: Pod,
    #[serde(flatten)]
    pub account: Account,
}

impl VmAccount {
    /// By the name that the ring has.
    fn of(account: Account) -> Self {
        let (namespace, name) = account.name.split_once('/').unwrap_or_default();
        Self {
            pod: Pod {
                pod_uid: account.vm.clone(),
                pod_namespace: namespace.to_owned(),
                pod_name: name.to_owned(),
            },
            account,
        }
    }
}

impl Render for VmAccount {
    fn text(&self, style: TextStyle) -> String {
        text::one(self, style)
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

/// Those of all VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct All(Vec<VmAccount>);

impl Render for All {
    fn text(&self, style: TextStyle) -> String {
        text::all(&self.0, style)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|vm_account| vm_account.pod.to_string()).collect()
    }
}

/// The accounts whose VM fits a pattern.
///
/// # Errors
/// It is no pattern, or none fits.
fn fitting_pattern(accounts: Vec<VmAccount>, pattern: &str) -> Result<All, Failure> {
    let parsed: VmPattern = pattern
        .parse()
        .map_err(|cause| Failure::Usage(format!("{pattern}: {cause}")))?;
    let meant = perhaps_meant(pattern, accounts.iter().map(|one| &one.pod));
    let fitting: Vec<VmAccount> = accounts.into_iter().filter(|one| parsed.selects(&one.pod)).collect();
    if fitting.is_empty() {
        Err(Failure::NoSuchInstance(format!(
            "the ledger has no VM that fits {pattern}{meant}"
        )))
    } else {
        Ok(All(fitting))
    }
}

/// Returns what is to be printed.
///
/// # Errors
/// [`Failure::Partial`] where the ring has faults, any other [`Failure`] where there is no answer.
pub(crate) async fn run(
    asked: &LedgerOptions,
    client: impl AsyncFnOnce() -> Result<Client, Failure>,
    roots: &Roots,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    match &asked.about {
        Some(About::Key) => return output_options.print(&proof::key(&client().await?).await?),
        Some(About::Verify { directory, key, expect }) => {
            let verdict = match directory {
                Some(directory) => offline::verdict(directory, key, expect.as_ref())?,
                None => proof::online(&client().await?).await?,
            };
            return output_options.print(&proof::Proof::of(verdict, directory.is_some(), key.is_empty()));
        }
        None => {}
    }
    if let (Some(vm), Some(watch)) = (&asked.vm, asked.watch) {
        return output_options.print(&watch::gather(&client().await?, vm, watch).await?);
    }
    let (since, until) = asked.times(output::now())?;
    let source = match &asked.directory {
        Some(directory) => query::Source::Copy(directory),
        None => query::Source::Daemon(client().await?),
    };
    match (&asked.vm, asked.report) {
        (Some(pattern), None) if is_glob(pattern) => {
            output_options.print(&fitting_pattern(source.all(since, until).await?, pattern)?)
        }
        (None, _) => output_options.print(&All(source.all(since, until).await?)),
        (Some(vm), None) => output_options.print(&source.one(vm, since, until).await?),
        (Some(vm), Some(kind)) => {
            let report = report::gather(&source, vm, since, until, roots).await?;
            match kind {
                Kind::Html => Ok(html::page(&report)),
                Kind::Json => Ok(output::Form::Json.write(&report)?),
            }
        }
    }
}
