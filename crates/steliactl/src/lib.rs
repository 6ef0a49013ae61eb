#![doc = include_str!("../README.md")]
//!
//! A command is in the folder of its group of the help, in a module of its name. Those that look have `gather`, which asks the daemon or
//! reads the node's files and returns a value that serializes; `shared/output/` prints it as JSON, or as the text that the value renders. What is
//! promised comes from the daemon, threads come from the kernel, and `verify` compares the two.
//!
//! It is a library so that tests reach the command line and the checks; it has no stable interface.

mod change;
mod check;
pub mod cli;
mod export;
mod plan;
mod shared;
mod view;

pub use check::ledger;
pub use shared::output;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use zbus::Connection;

use change::{rebalance, reconcile, release, resize};
use check::{doctor, noise, report, verify, why};
use cli::{Cli, Command, Export};
use export::{metrics, topology};
use shared::daemon::{self, CALL_TIMEOUT, Client, Failure, Mode, Pods, Selected};
use shared::files;
use shared::kernel::{Roots, host_name};
use view::{list, map, monitor, show, status, top};

/// The program: parse, call, print. A wrong command line ends in clap with exit code 2.
pub fn main() -> ExitCode {
    // Before anything else: a shell asks through the environment.
    match CompleteEnv::with_factory(Cli::command).try_complete(std::env::args_os(), None) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return finish(Err(Failure::Usage(error.to_string()))),
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| cli::help::end(error));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return finish(Err(Failure::Other(format!("start: {error}")))),
    };
    let roots = Roots::below(cli.root());
    let outcome = runtime.block_on(run(&cli, &roots, async || daemon::connect(CALL_TIMEOUT).await));
    finish(outcome)
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
    match cli.asked() {
        Command::Doctor {
            kubelet_state: Some(file),
            ..
        } => output_options.print(&doctor::read_state_file(file, &Pods::by_logs(root))),
        Command::Doctor { verbose, .. } => {
            // doctor does not start the daemon, which may be the fault.
            let described = async { client().await?.describe().await }.await;
            let mut options = output_options;
            options.style.wide |= verbose;
            options.print(&doctor::gather(root, described).await)
        }
        Command::Plan(asked) => plan::run(asked, client, root, output_options).await,
        Command::Status => {
            let described = client().await?.describe().await?;
            output_options.print(&status::Status::of(&described, host_name(&roots.proc)))
        }
        Command::List {
            unmanaged: true,
            config,
            ..
        } => {
            let client = client().await?;
            let unmanaged = match config {
                Some(path) => {
                    client
                        .preview_adoption(&files::text(path, list::MAX_CONFIG_BYTES)?)
                        .await?
                }
                None => client.describe().await?.node.unadopted.to_vec(),
            };
            output_options.print(&list::Unmanaged(unmanaged))
        }
        Command::List {
            selection, problems, ..
        } => {
            let selected = client().await?.select(selection).await?;
            let vms = list::Vms::of(&selected);
            let vms = if *problems { vms.in_trouble() } else { vms };
            output_options.print(&vms)
        }
        Command::Show { selection, .. } if selection.is_all() => {
            Err(Failure::Usage("specify a VM (see steliactl list)".to_owned()))
        }
        Command::Show { selection, threads } => {
            let selected = client().await?.select(selection).await?;
            let details = show::Details {
                threads: *threads,
                full: cli.common.full,
            };
            output_options.print(&show::gather(&selected, roots, details)?)
        }
        Command::Map { selection, svg } => {
            let selected = client().await?.select(selection).await?;
            let map = map::gather(&selected, roots);
            if *svg { map.svg() } else { output_options.print(&map) }
        }
        Command::Why { what } => why::run(&client().await?, roots, root, what, output_options).await,
        Command::Export(Export::Metrics { textfile }) => {
            metrics::run(&client().await?, roots, textfile.as_deref()).await
        }
        Command::Export(Export::Topology(asked)) => topology::run(&client().await?, asked, output_options).await,
        Command::Report { seconds } => {
            output_options.print(&report::gather(client().await, roots, root, *seconds).await)
        }
        Command::Verify { selection, demands } => {
            let client = client().await?;
            let selected = Selected::of(selection, client.describe().await?)?;
            let verified = verify::gather(&client, roots, &selected, *demands).await?;
            output_options.print(&verified)
        }
        Command::Ledger(asked) => ledger::run(asked, client, roots, output_options).await,
        Command::Noise(selection) => {
            let selected = client().await?.select(selection).await?;
            output_options.print(&noise::gather(roots, &selected).await)
        }
        Command::Reconcile { dry_run } => {
            output_options.print(&reconcile::reconcile(&client().await?, Mode::of(*dry_run)).await?)
        }
        Command::Rebalance { vm, dry_run, deadline } => output_options
            .print(&rebalance::rebalance(&client().await?, vm.as_deref(), *deadline, Mode::of(*dry_run)).await?),
        Command::Resize { vm, cpus, dry_run } => {
            output_options.print(&resize::resize(&client().await?, vm, *cpus, Mode::of(*dry_run)).await?)
        }
        Command::Release { vm, dry_run } => {
            output_options.print(&release::release(&client().await?, vm, Mode::of(*dry_run)).await?)
        }
        Command::Top {
            selection,
            count,
            delay,
        } => {
            let client = client().await?;
            let selected = client.select(selection).await?;
            let (source, first) = top::Source::of(&client, roots, &selected, *delay);
            let is_live = count.is_none() && !output_options.form.is_data() && Cli::has_screen();
            if is_live {
                top::live(source, first, output_options.style).await
            } else {
                top::batch(source, *count, output_options).await
            }
        }
        Command::Monitor(selection) => {
            monitor::run(&client().await?, selection, output_options, daemon::signals::print).await
        }
    }
}

/// What fits on every terminal.
const MIN_TERMINAL_LINES: usize = 24;

/// Prints the outcome and turns it into the exit code.
fn finish(outcome: Result<String, Failure>) -> ExitCode {
    let (text, failure) = match outcome {
        Ok(text) => (text, None),
        Err(mut failure) => (failure.take_printed(), Some(failure)),
    };
    let written = output::write(&text);
    let failure = failure.or_else(|| written.err().map(|error| Failure::Other(format!("write: {error}"))));
    let Some(failure) = failure else {
        return ExitCode::SUCCESS;
    };
    // On a terminal the summary already says it, unless the text is longer than the screen.
    let fits = text.lines().count() < MIN_TERMINAL_LINES;
    let is_seen = fits && io::stdout().is_terminal() && io::stderr().is_terminal();
    if !is_seen || !output::has_sentence(&text, &failure.to_string()) {
        output::note(&failure.to_string());
    }
    let _ = failure.fix().map(|fix| output::tell(&format!("fix: {fix}")));
    ExitCode::from(failure.exit_code())
}
