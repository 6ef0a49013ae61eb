#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`client`] | the calls to the daemon, and what they fail with |
//! | [`completions`] | what shells are told |
//! | [`doctor`] | whether this node is fit |
//! | [`evaluate`] | what the allocator would answer |
//! | [`explain`] | who chooses CPUs; why an instance has those it has, and a CPU is whose it is |
//! | [`kubelet_state`] | what is understood of kubelet's files |
//! | [`locality`] | where memory and devices are, beside the CPUs |
//! | [`map`] | the node drawn |
//! | [`metrics`] | what Prometheus is told |
//! | [`monitor`] | the daemon's signals as lines |
//! | [`node`] | whose each CPU is |
//! | [`node_topology`] | what schedulers are told of the node |
//! | [`pager`] | long output for a person |
//! | [`plan`] | what kubelet would do with a pod |
//! | `signals` | following the daemon |
//! | [`status`] | the node in a screen |
//! | [`threads`] | the threads of an instance, read from `/proc` and the cgroup tree |
//! | [`top`] | what the vCPU threads do, live |
//! | [`verify`] | whether every promise holds |
//! | [`view`] | text and JSON |
//!
//! The daemon is asked for what it promised; the threads are read from the kernel, so that `show` holds one against the other.

pub mod cli;
pub mod client;
pub mod completions;
pub mod doctor;
pub mod evaluate;
pub mod explain;
pub mod kubelet_state;
pub mod locality;
pub mod map;
pub mod metrics;
pub mod monitor;
pub mod node;
pub mod node_topology;
pub mod pager;
pub mod plan;
pub mod rebind;
mod signals;
pub mod status;
pub mod threads;
pub mod top;
pub mod verify;
pub mod view;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use zbus::Connection;

use cli::{Cli, Command};
use client::{Client, Failure};
use node::Node;
use threads::Roots;

/// The program: parse, call, print. A wrong command line ends in clap with exit code 2.
pub fn main() -> ExitCode {
    // Before anything else: a shell asks through the environment.
    match CompleteEnv::with_factory(Cli::command).try_complete(std::env::args_os(), None) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return finish(Err(Failure::Usage(error.to_string())), false),
    }
    let cli = Cli::parse();
    let roots = cli.root.as_deref().map(Roots::below).unwrap_or_default();
    let paged = !cli.no_pager;
    if let Command::KubeletState { path } = &cli.command {
        return finish(kubelet_state::run(path.as_deref(), cli.json, !cli.no_legend), paged);
    }
    if let Command::Evaluate { node: Some(_), .. } = &cli.command {
        return finish(evaluate::offline(&cli.command, cli.json, !cli.no_legend), paged);
    }
    if let Command::Plan(asked) = &cli.command {
        return finish(plan::run(asked, below(&cli), cli.json, !cli.no_legend), paged);
    }
    if let Command::Completions { shell } = &cli.command {
        return finish(completions::script(*shell), false);
    }
    if let Command::Doctor = &cli.command {
        return finish(doctor::run(Path::new("/"), cli.json, !cli.no_legend), paged);
    }
    let outcome = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async {
            let connection = client::connect(cli.address.as_deref()).await?;
            run(&cli, &connection, &roots).await
        }),
        Err(error) => Err(Failure::Other(format!("start: {error}"))),
    };
    finish(outcome, paged)
}

/// The root of the file system, or of a simulated node's.
fn below(cli: &Cli) -> &Path {
    cli.root.as_deref().unwrap_or(Path::new("/"))
}

/// Does what the command line says over `connection` and answers what is to be printed.
pub async fn run(cli: &Cli, connection: &Connection, roots: &Roots) -> Result<String, Failure> {
    let client = Client::new(connection).await?;
    let legend = !cli.no_legend;
    Ok(match &cli.command {
        Command::Status => {
            let status = status::Status::of(&Node::parse(&client.describe().await?)?);
            if cli.json.is_on() {
                view::to_json(cli.json, &status)
            } else {
                status::text(&status, view::now())
            }
        }
        Command::List => {
            let instances = client.instances().await?;
            if cli.json.is_on() {
                view::to_json(cli.json, &instances)
            } else {
                view::instances(&instances, legend)
            }
        }
        Command::Show { uid, numa_maps } => {
            let row = client.find(uid).await?;
            let properties = client.properties(&row).await?;
            let processes = threads::processes(
                roots,
                view::text_of(&properties, "ControlGroup"),
                view::text_of(&properties, "OriginControlGroup"),
            )?;
            let seen = seen(&client, &row.0, roots, &processes).await;
            let seen = match seen {
                Some(seen) if *numa_maps => Some(seen.with_mapped(roots, &processes)?),
                seen => seen,
            };
            if cli.json.is_on() {
                view::instance_json(cli.json, &properties, &processes, seen.as_ref())
            } else {
                let near = seen.map(|seen| seen.text(legend)).unwrap_or_default();
                view::properties(&properties) + &near + &view::processes(&processes, legend)
            }
        }
        Command::Map { svg } => {
            let node = Node::parse(&client.describe().await?)?;
            if let Some(path) = svg {
                std::fs::write(path, map::svg(&node))
                    .map_err(|cause| Failure::Other(format!("write {}: {cause}", path.display())))?;
            }
            match svg {
                Some(_) => String::new(),
                None if cli.json.is_on() => view::to_json(cli.json, &map::cores(&node)),
                None => map::text(&node, view::width(), view::coloured(), legend),
            }
        }
        Command::Explain { what } => explain::run(&client, what.as_deref(), cli.json, legend).await?,
        Command::Metrics { textfile } => metrics::run(&client, roots, textfile.as_deref(), cli.json).await?,
        Command::Describe => view::json_text(cli.json, &client.describe().await?),
        Command::NodeTopology {
            output,
            api_version,
            node_name,
            watch,
        } => {
            let asked = node_topology::Asked {
                form: node_topology::Form::of(*output, cli.json),
                api_version,
                node_name: node_name.as_deref(),
            };
            if *watch {
                node_topology::watch(connection, &client, &asked).await?
            } else {
                node_topology::print(&client, &asked).await?
            }
        }
        Command::Evaluate { node: None, .. } => evaluate::online(&client, &cli.command, cli.json, legend).await?,
        Command::Evaluate { .. } => evaluate::offline(&cli.command, cli.json, legend)?,
        Command::Reconcile { dry_run: true } => {
            let preview = client.preview().await?;
            if cli.json.is_on() {
                view::to_json(cli.json, &view::json_of(&preview))
            } else {
                verify::plan(&preview)
            }
        }
        Command::Verify { uid } => {
            let pod = match uid {
                Some(uid) => Some(client.find(uid).await?.0),
                None => None,
            };
            let instances = client.instances().await?;
            let near = locality::parse(&client.describe().await?)?;
            let preview = client.preview().await?;
            verify::run(&preview, &near, &instances, pod.as_deref(), cli.json, legend)?
        }
        Command::Reconcile { dry_run: false } => {
            let report = client.reconcile().await?;
            if cli.json.is_on() {
                view::to_json(cli.json, &view::json_of(&report))
            } else {
                view::report(&report)
            }
        }
        Command::Rebind { uid, dry_run, deadline } => {
            rebind::run(&client, uid.as_deref(), *deadline, *dry_run, (cli.json, legend)).await?
        }
        Command::Deregister { uid } => {
            let uid = client.deregister(uid).await?;
            if cli.json.is_on() {
                view::to_json(cli.json, &serde_json::json!({ "PodUID": uid }))
            } else {
                String::new()
            }
        }
        Command::Completions { shell } => completions::script(*shell)?,
        Command::Top { batch, count, delay } => {
            let how = top::How {
                json: cli.json,
                legend,
                count: *count,
                delay: *delay,
            };
            top::run(&client, roots, *batch, how).await?
        }
        Command::Monitor => monitor::run(connection, cli.json).await?,
        Command::Doctor => doctor::run(Path::new("/"), cli.json, legend)?,
        Command::KubeletState { path } => kubelet_state::run(path.as_deref(), cli.json, legend)?,
        Command::Plan(asked) => plan::run(asked, below(cli), cli.json, legend)?,
        Command::Reload => {
            client.reload().await?;
            if cli.json.is_on() {
                "{}\n".to_owned()
            } else {
                String::new()
            }
        }
    })
}

/// Where the memory and the devices of this pod are. Who may not ask for the node's description, as a pod may not, is shown the
/// rest.
async fn seen(client: &Client<'_>, pod: &str, roots: &Roots, processes: &[threads::Process]) -> Option<locality::Seen> {
    let localities = locality::parse(&client.describe().await.ok()?).ok()?;
    locality::Seen::of(localities, pod, roots, processes)
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
    // Nowhere to complain when standard error is gone too.
    let _ = writeln!(io::stderr(), "steliactl: {}", view::printable(&failure.to_string()));
    ExitCode::from(failure.exit_code())
}
