#![doc = include_str!("../README.md")]

mod apiserver;
pub mod chooser;
pub mod cli;
pub mod cluster;
mod command_input;
pub mod eligible;
mod files;
pub mod health;
pub mod ledger;
pub mod nodes;
pub mod objects;
pub mod plan;
pub mod pod_request;
pub mod reasons;
mod selector;
#[cfg(test)]
mod tests;
pub mod verdict;
pub mod vms;
pub mod why;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::CompleteEnv;
use stelia_ledger::day::Month;
use stelia_table::{PrintError, TextStyle, now, paragraph, printable};

use cli::{Cli, Command};
use health::Health;
use ledger::{Ledger, RingCopy};
use nodes::Nodes;
use plan::Plan;
use vms::Vms;
use why::WhyAnswer;

/// Why a command failed. The exit code follows from the variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NoSuchObject(String),
    /// The answer is printed, and the exit code is 1 all the same.
    #[error("{reason}")]
    Partial { printed: String, reason: String },
    #[error("{0}")]
    Other(String),
}

impl From<PrintError> for Failure {
    fn from(PrintError { printed, reason }: PrintError) -> Self {
        Self::Partial { printed, reason }
    }
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Partial { .. } | Self::Other(_) => 1,
            Self::Usage(_) => 2,
            Self::NoSuchObject(_) => 3,
        }
    }
}

/// A sentence, wrapped to the terminal's width.
pub(crate) fn prose(sentence: &str, style: TextStyle) -> String {
    paragraph(&printable(sentence), style)
}

/// The program: parse, read, print. A wrong command line ends in clap with exit code 2.
pub fn main() -> ExitCode {
    // Before anything else: a shell asks through the environment.
    match CompleteEnv::with_factory(Cli::command).try_complete(std::env::args_os(), None) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return finish(Err(Failure::Usage(error.to_string()))),
    }
    let matches = cli::help::command().try_get_matches();
    match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => finish(run(&cli)),
        Err(error) => error.exit(),
    }
}

fn run(cli: &Cli) -> Result<String, Failure> {
    let output_options = cli.output_options();
    match &cli.command {
        Command::Nodes { names, chosen } => {
            let nodes = Nodes::of(&command_input::nodes(cli, names, chosen, false)?, now());
            output_options.print(&nodes)
        }
        Command::Vms {
            filter, nodes, chosen, ..
        } => {
            let cluster = command_input::nodes(cli, nodes, chosen, true)?;
            let on_all = chosen.selector.is_none() && nodes.is_empty();
            let vms = Vms::of(&cluster, filter, on_all, now());
            if vms.vms.is_empty() && !filter.patterns.is_empty() {
                Err(Failure::NoSuchObject("no VM fits".to_owned()))
            } else {
                output_options.print(&vms)
            }
        }
        Command::Health { names, chosen } => {
            output_options.print(&Health::of(&command_input::nodes(cli, names, chosen, false)?))
        }
        Command::Why {
            pod,
            namespace,
            chosen,
            asked,
        } => {
            let pod = pod.as_deref().map(|pod| (pod, namespace.as_deref()));
            let (pod_request, cluster) = command_input::pod_request(cli, pod, chosen, asked)?;
            output_options.print(&WhyAnswer::of(&pod_request, &cluster))
        }
        Command::Plan {
            until_full,
            chosen,
            asked,
        } => {
            let (pod_request, cluster) = command_input::pod_request(cli, None, chosen, asked)?;
            output_options.print(&Plan::of(&pod_request, &cluster, *until_full))
        }
        Command::Ledger {
            directories,
            vms,
            month,
            keys,
        } => {
            let mut rings = Vec::new();
            for argument in directories {
                rings.extend(ledger::of_argument(argument).map_err(Failure::Other)?);
            }
            let (since_us, until_us) = month.map_or((0, u64::MAX), Month::period);
            let read = |ring: RingCopy| ring.read((since_us, until_us), keys);
            let rings: Vec<RingCopy> = rings.into_iter().map(read).collect();
            if let Some(problem) = ledger::ambiguous(&rings, vms) {
                return Err(Failure::Usage(problem));
            }
            if !ledger::has_vm(&rings, vms) {
                let text = ledger::absent(&rings, (since_us, until_us));
                // It may be in a ring that could not be read.
                let may_be_there = rings.iter().any(|ring| ring.problem.is_some());
                return Err(if may_be_there {
                    Failure::Other(text)
                } else {
                    Failure::NoSuchObject(text)
                });
            }
            output_options.print(&Ledger::of(rings, vms, (since_us, until_us), now()))
        }
        Command::Completions { shell } => stelia_table::completion_script("stelia-cluster", shell)
            .map_err(|cause| Failure::Other(format!("completions for {shell}: {cause}"))),
    }
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
