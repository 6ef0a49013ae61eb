#![doc = include_str!("../README.md")]
//!
//! A command is in the folder of its group of the help, in a module of its name. Most have `gather`, which asks the daemon or reads the
//! node's files and returns a value that serializes; `shared/output/` prints it as JSON, or as the text that the value renders. What is
//! promised comes from the daemon, threads come from the kernel, so that `show` compares the two.
//!
//! It is a library so that tests reach the command line and the checks; it has no stable interface.

mod change;
pub mod cli;
mod explain_and_check;
mod integration;
mod plan;
mod shared;
mod view;

pub use check::ledger;
pub use integration::metrics;
pub use shared::output;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use zbus::Connection;

use change::{deregister, rebind, reconcile, resize};
use cli::{Cli, Command, remote};
use explain_and_check::{doctor, quiet, report, verify};
use integration::node_topology;
use plan::evaluate;
use shared::daemon::{self, CALL_TIMEOUT, Client, Failure};
use shared::kernel::Roots;
use shared::output::pager;
use view::{list, map, monitor, show, status, top};

/// The program: parse, call, print. A wrong command line ends in clap with exit code 2.
pub fn main() -> ExitCode {
    // Before anything else: a shell asks through the environment.
    match CompleteEnv::with_factory(Cli::command).try_complete(std::env::args_os(), None) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return finish(Err(Failure::Usage(error.to_string())), false),
    }
    let cli = Cli::parse();
    if let Some(host) = &cli.common.host {
        return finish(Err(remote::run(host, cli.is_live())), false);
    }
    // What programs read is not paged.
    let paged = !cli.common.no_pager
        && !matches!(&cli.command, Command::Ledger(asked) if asked.is_document())
        && !matches!(cli.command, Command::Map { svg: Some(_), .. });
    let outcome = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(&cli, &Roots::below(cli.root()), async || {
            daemon::connect(cli.common.address.as_deref(), CALL_TIMEOUT).await
        })),
        Err(error) => Err(Failure::Other(format!("start: {error}"))),
    };
    finish(outcome, paged)
}

/// Runs the command and returns what is to be printed. `connect` is called only for commands that need the daemon.
async fn run(
    cli: &Cli,
    roots: &Roots,
    connect: impl AsyncFnOnce() -> Result<Connection, Failure>,
) -> Result<String, Failure> {
    let output_options = cli.output_options()?;
    let root = cli.root();
    let client = async || Client::new(connect().await?, CALL_TIMEOUT).await;
    match &cli.command {
        Command::Doctor {
            kubelet_state: Some(file),
        } => output_options.print(&doctor::state_file(file, root)),
        Command::Doctor { kubelet_state: None } => {
            // Not started for it: it may be what is unfit.
            let (described, status) = match client().await {
                Err(_) => (None, None),
                Ok(client) => (
                    client.describe_running().await.ok(),
                    doctor::plugin_status(client.connection()).await,
                ),
            };
            output_options.print(&doctor::gather(Path::new("/"), described, status).await)
        }
        Command::Plan(asked) => plan::plan::run(asked, root, output_options),
        Command::Evaluate(asked) => output_options.print(&match &asked.node {
            Some(path) => evaluate::offline(asked, path)?,
            None => evaluate::online(&client().await?, asked).await?,
        }),
        Command::Status(selection) => {
            output_options.print(&status::Status::selected(client().await?.describe().await?, selection)?)
        }
        Command::List { unmanaged: true, .. } => {
            output_options.print(&list::Unmanaged::of(&client().await?.describe().await?))
        }
        Command::List { selection, .. } => {
            let client = client().await?;
            // A pod may not ask for it, and has nothing there.
            let described = client.describe_running().await.unwrap_or_default();
            let all = client.instances().await?;
            if let Some(namespace) = selection.empty_namespace(all.iter().map(|one| &one.pod)) {
                output::note(&format!("no VM in namespace {namespace}"));
            }
            let instances = selection.of_listed(all)?;
            let mut list = list::Instances::of(instances, &described);
            if !selection.is_all() {
                list.without_unmanaged();
            }
            output_options.print(&list)
        }
        Command::Show { selection, numa_maps } => {
            output_options.print(&show::gather(&client().await?, roots, selection, *numa_maps).await?)
        }
        Command::Map { selection, svg } => {
            let described = client().await?.describe().await?;
            let map = map::gather(&described, roots, selection.among(&described)?.as_ref());
            match svg {
                Some(path) => map.write_svg(path),
                None => output_options.print(&map),
            }
        }
        Command::Explain { what } => {
            explain_and_check::explain::run(&client().await?, roots, root, what, output_options).await
        }
        Command::Metrics { textfile } => {
            metrics::run(&client().await?, roots, textfile.as_deref(), output_options).await
        }
        Command::NodeTopology(asked) => node_topology::run(&client().await?, asked, output_options).await,
        Command::Report { seconds } => {
            output_options.print(&report::gather(client().await, roots, root, *seconds).await)
        }
        Command::Verify { selection, demands } => {
            output_options.print(&verify::gather(&client().await?, selection, *demands).await?)
        }
        Command::Ledger(asked) => ledger::run(asked, client, roots, output_options).await,
        Command::Quiet(selection) => output_options.print(&quiet::gather(&client().await?, roots, selection).await?),
        Command::Reconcile { dry_run } => {
            let answer = reconcile::gather(&client().await?, *dry_run).await?;
            if let Some(note) = answer.note() {
                output::note(&note);
            }
            output_options.print(&answer)
        }
        Command::Rebind { vm, dry_run, deadline } => {
            output_options.print(&rebind::gather(&client().await?, vm.as_deref(), *deadline, *dry_run).await?)
        }
        Command::Resize { vm, cpus, dry_run } => {
            output_options.print(&resize::gather(&client().await?, root, vm, *cpus, *dry_run).await?)
        }
        Command::Deregister { vm } => output_options.print(&deregister::gather(&client().await?, vm).await?),
        Command::Top {
            selection,
            batch,
            count,
            delay,
        } => {
            let (count, delay) = (*count, *delay);
            let client = client().await?;
            let source = top::Source::of(&client, roots, selection).await?;
            top::run(&source, *batch, top::Pace { count, delay }, output_options).await
        }
        Command::Monitor(selection) => monitor::run(&client().await?, selection, output_options.form).await,
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
    output::note(&failure.to_string());
    ExitCode::from(failure.exit_code())
}
