//! `stelia-simulate SCENARIO`: steliad on a node in memory.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;

/// Runs steliad on a simulated node that plays a scenario, on the bus of DBUS_SYSTEM_BUS_ADDRESS, until it is terminated.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// TOML file with the node, its pods, and what happens to them.
    scenario: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let loaded = stelia_settings::load(std::path::Path::new("/"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .context("start the runtime")?;
    runtime.block_on(stelia_simulator::serve(&arguments.scenario, loaded.settings))
}
