#![doc = include_str!("../README.md")]
//!
//! | module | what is there |
//! |---|---|
//! | [`cli`] | the command line |
//! | `input`, `api` | objects from files and from the API server: all I/O |
//! | [`objects`] | nodes, pods and NodeResourceTopologies, read |
//! | [`cluster`] | the objects by node |
//! | [`room`] | what a node's CPUs have room for, by who chooses them |
//! | `eligible` | labels, taints and requests |
//! | [`nodes`] | a command each |

pub mod ask;
pub mod cli;
pub mod cluster;
pub mod eligible;
mod input;
pub mod nodes;
pub mod objects;
pub mod room;
mod selector;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use stelia_table::{PrintError, printable};

use cli::{BySelector, Cli, Command};
use cluster::{Chosen, Cluster};
use nodes::Nodes;
use objects::{Objects, Wanted};

/// Why a command failed. The exit code follows from the variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NoSuchPod(String),
    /// The answer is printed, and the exit code is 1 all the same.
    #[error("{reason}")]
    Partial { printed: String, reason: String },
    #[error("{0}")]
    Other(String),
}

impl From<PrintError> for Failure {
    fn from(error: PrintError) -> Self {
        match error {
            PrintError::Partial { printed, reason } => Self::Partial { printed, reason },
            PrintError::Write(cause) => Self::Other(cause.to_string()),
        }
    }
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Partial { .. } | Self::Other(_) => 1,
            Self::Usage(_) => 2,
            Self::NoSuchPod(_) => 3,
        }
    }
}

/// The program: parse, read, print. A wrong command line ends in clap with exit code 2.
pub fn main() -> ExitCode {
    // Before anything else: a shell asks through the environment.
    match CompleteEnv::with_factory(Cli::command).try_complete(std::env::args_os(), None) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return finish(Err(Failure::Usage(error.to_string()))),
    }
    finish(run(&Cli::parse()))
}

fn run(cli: &Cli) -> Result<String, Failure> {
    let how = cli.how();
    match &cli.command {
        Command::Nodes { names, chosen } => {
            let cluster = nodes_of(cli, names, chosen)?;
            how.print(&Nodes::of(&cluster, now_us()))
        }
        Command::Completions { shell } => completions(shell),
    }
}

/// The nodes, without pods.
fn nodes_of(cli: &Cli, names: &[String], chosen: &BySelector) -> Result<Cluster, Failure> {
    let objects = gather(cli, Wanted::default())?;
    let chosen = Chosen {
        names,
        selector: chosen.selector.as_ref(),
        without: None,
    };
    let cluster = Cluster::of(objects, &chosen).map_err(Failure::Other)?;
    tell(&cluster);
    Ok(cluster)
}

fn gather(cli: &Cli, wanted: Wanted) -> Result<Objects, Failure> {
    let mut objects = Objects::new(wanted);
    input::read(&mut objects, &cli.from).map_err(Failure::Other)?;
    Ok(objects)
}

/// A line for each object that could not be read.
fn tell(cluster: &Cluster) {
    for line in cluster.problems.lines() {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "stelia-cluster: {}", printable(&line));
    }
}

/// Microseconds since the epoch.
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

fn completions(shell: &str) -> Result<String, Failure> {
    let failed = |cause: String| Failure::Other(format!("completions for {shell}: {cause}"));
    stelia_table::completion_script("stelia-cluster", shell).map_err(failed)
}

/// Prints the outcome and turns it into the exit code.
fn finish(outcome: Result<String, Failure>) -> ExitCode {
    let (text, failure) = match outcome {
        Ok(text) => (text, None),
        Err(Failure::Partial { printed, reason }) => (printed, Some(Failure::Other(reason))),
        Err(failure) => (String::new(), Some(failure)),
    };
    let written = io::stdout().lock().write_all(text.as_bytes());
    // Whoever reads may have seen enough.
    let written = written.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    });
    let failure = failure.or_else(|| written.err().map(|error| Failure::Other(format!("write: {error}"))));
    let Some(failure) = failure else {
        return ExitCode::SUCCESS;
    };
    let _ = writeln!(io::stderr(), "stelia-cluster: {}", printable(&failure.to_string()));
    ExitCode::from(failure.exit_code())
}
