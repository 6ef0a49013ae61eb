use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use stelia_placement::cli::Cli;
use stelia_placement::run::run;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(shell) = cli.completions {
        return match io::stdout().write_all(&Cli::completion(shell)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    // One thread for what waits, and one beside it, so that a long answer delays neither the Lease nor the watches.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let outcome = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(cli)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("stelia-placement: {cause:#}");
            ExitCode::FAILURE
        }
    }
}
