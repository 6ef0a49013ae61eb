#![doc = include_str!("../README.md")]
//!
//! Each command is a module: `gather` asks the daemon or reads the node's files and returns a value that serializes;
//! `view` prints it as JSON, or as the text that the value renders. What is promised comes from the daemon, threads
//! come from the kernel, so that `show` compares the two.
//!
//! It is a library so that tests reach the command line and the checks; it has no stable interface.

pub mod cli;
mod client;
mod completions;
pub mod doctor;
pub mod evaluate;
mod explain;
mod input;
mod kubelet_state;
mod list;
mod locality;
mod map;
pub mod metrics;
mod monitor;
mod node;
mod node_topology;
mod pager;
mod plan;
mod rebind;
mod reconcile;
mod sample;
mod show;
mod signals;
mod status;
mod threads;
mod top;
mod verify;
pub mod view;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use serde::Serialize;
use serde_json::json;
use zbus::Connection;

use cli::{Cli, Command};
use client::{Client, Failure};
use threads::Roots;
use view::{How, Render};

/// The program: parse, call, print. A wrong command line ends in clap with exit code 2.
pub fn main() -> ExitCode {
    // Before anything else: a shell asks through the environment.
    match CompleteEnv::with_factory(Cli::command).try_complete(std::env::args_os(), None) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return finish(Err(Failure::Usage(error.to_string())), false),
    }
    let cli = Cli::parse();
    let paged = !cli.no_pager && !matches!(cli.command, Command::Completions { .. });
    let outcome = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(&cli, &Roots::of(&cli), async || {
            client::connect(cli.address.as_deref()).await
        })),
        Err(error) => Err(Failure::Other(format!("start: {error}"))),
    };
    finish(outcome, paged)
}

/// The success of a command that prints no text; in JSON it is this value.
#[derive(Serialize)]
#[serde(transparent)]
struct Done(serde_json::Value);

impl Render for Done {
    fn text(&self, _: bool) -> String {
        String::new()
    }
}

/// Runs the command and returns what is to be printed. `connect` is called only for commands that need the daemon.
async fn run(
    cli: &Cli,
    roots: &Roots,
    connect: impl AsyncFnOnce() -> Result<Connection, Failure>,
) -> Result<String, Failure> {
    let how = How {
        json: cli.json,
        legend: !cli.no_legend,
    };
    let client = async || Client::new(connect().await?).await;
    match &cli.command {
        Command::Completions { shell } => completions::script(*shell),
        Command::Doctor => how.print(&doctor::gather(Path::new("/"))),
        Command::KubeletState { path } => how.print(&kubelet_state::gather(path.as_deref())?),
        Command::Plan(asked) => plan::run(asked, cli.root.as_deref().unwrap_or(Path::new("/")), how),
        Command::Evaluate { node: Some(_), .. } => evaluate::offline(&cli.command, how.json, how.legend),
        Command::Evaluate { .. } => evaluate::online(&client().await?, &cli.command, how.json, how.legend).await,
        Command::Status => how.print(&status::Status::of(&client().await?.describe().await?)),
        Command::List => how.print(&list::Instances(client().await?.instances().await?)),
        Command::Show { uid, numa_maps } => how.print(&show::gather(&client().await?, roots, uid, *numa_maps).await?),
        Command::Map { svg } => {
            let map = map::Map(client().await?.describe().await?);
            match svg {
                Some(path) => map.draw(path).map(|()| String::new()),
                None => how.print(&map),
            }
        }
        Command::Explain { what } => explain::run(&client().await?, what.as_deref(), how).await,
        Command::Metrics { textfile } => metrics::run(&client().await?, roots, textfile.as_deref(), how).await,
        Command::Describe => Ok(view::json_text(how.json, &client().await?.describe_text().await?)),
        Command::NodeTopology {
            output,
            api_version,
            node_name,
            watch,
        } => {
            let asked = node_topology::TopologyOptions {
                form: node_topology::Form::of(*output, how.json),
                api_version,
                node_name: node_name.as_deref(),
            };
            match watch {
                true => node_topology::watch(&client().await?, &asked).await,
                false => node_topology::print(&client().await?, &asked).await,
            }
        }
        Command::Verify { uid } => how.print(&verify::gather(&client().await?, uid.as_deref()).await?),
        Command::Reconcile { dry_run: true } => how.print(&reconcile::Steps(client().await?.preview().await?)),
        Command::Reconcile { dry_run: false } => how.print(&reconcile::Report(client().await?.reconcile().await?)),
        Command::Rebind { uid, dry_run, deadline } => {
            how.print(&rebind::gather(&client().await?, uid.as_deref(), *deadline, *dry_run).await?)
        }
        Command::Deregister { uid } => {
            let uid = client().await?.deregister(uid).await?;
            how.print(&Done(json!({ "PodUID": uid })))
        }
        Command::Reload => {
            client().await?.reload().await?;
            how.print(&Done(json!({})))
        }
        Command::Top { batch, count, delay } => {
            let (count, delay) = (*count, *delay);
            top::run(&client().await?, roots, *batch, top::Pace { count, delay }, how).await
        }
        Command::Monitor => monitor::run(client().await?.connection(), how.json).await,
    }
}

/// Prints the outcome and turns it into the exit code.
fn finish(outcome: Result<String, Failure>, paged: bool) -> ExitCode {
    let (text, failure) = match outcome {
        Ok(text) => (text, None),
        Err(Failure::Partial { printed, reason }) => (printed, Some(Failure::Other(reason))),
        Err(failure) => (String::new(), Some(failure)),
    };
    let written = pager::print(&text, paged);
    let failure = failure.or_else(|| written.err().map(|error| Failure::Other(format!("write: {error}"))));
    let Some(failure) = failure else {
        return ExitCode::SUCCESS;
    };
    // Standard error may be closed too.
    let _ = writeln!(io::stderr(), "steliactl: {}", view::printable(&failure.to_string()));
    ExitCode::from(failure.exit_code())
}
