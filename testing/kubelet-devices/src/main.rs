//! `kubelet-devices`: kubelet's side of the device plugin API; see the README.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use stelia_device_plugin::api::PLUGIN_FOLDER;
use test_kubelet_devices::control::{self, Request};
use test_kubelet_devices::kubelet::Kubelet;
use test_kubelet_devices::offered::{self, Offered};

/// kubelet's side of the device plugin API, for the test node
#[derive(Debug, Parser)]
#[command(name = "kubelet-devices", version, max_term_width = 100)]
struct Options {
    /// The socket on which `serve` takes the other commands
    #[arg(long, default_value = "/run/kubelet-standin/devices.sock", global = true)]
    control: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Wipe the folder, listen on kubelet.sock, hold the plugins' streams
    Serve {
        /// The folder of plugins' sockets
        #[arg(long, default_value = PLUGIN_FOLDER)]
        folder: PathBuf,
        /// Where allocations are kept
        #[arg(long, default_value = "/run/kubelet-standin/devices.json")]
        state: PathBuf,
    },
    /// Plugins, devices and allocations as JSON
    Show,
    /// Devices for a container, as JSON
    Allocate {
        /// The pod's UID
        pod: String,
        /// The container's name
        container: String,
        /// The resource's name
        resource: String,
        /// How many devices
        count: usize,
    },
    /// The pod has ended
    Free {
        /// The pod's UID
        pod: String,
    },
    /// A device plugin with these devices, until it is ended
    Offer {
        /// The resource's name
        resource: String,
        /// A device: its ID, its NUMA node, and the device nodes that its container gets
        #[arg(long = "device", value_name = "ID=NODE:PATH,PATH")]
        devices: Vec<Offered>,
        /// The folder of plugins' sockets
        #[arg(long, default_value = PLUGIN_FOLDER)]
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("start the runtime")?.block_on(carry_out(options))
}

async fn carry_out(Options { control, command }: Options) -> anyhow::Result<()> {
    let request = match command {
        Command::Serve { folder, state } => {
            let kubelet = Kubelet::start(&folder, &state)?;
            return tokio::select! {
                ended = kubelet.clone().serve() => ended,
                ended = control::serve(kubelet, &control) => ended,
            };
        }
        Command::Offer {
            resource,
            devices,
            folder,
        } => return offered::offer(&folder, &resource, devices).await,
        Command::Show => Request::Show,
        Command::Allocate {
            pod,
            container,
            resource,
            count,
        } => Request::Allocate {
            pod,
            container,
            resource,
            count,
        },
        Command::Free { pod } => Request::Free { pod },
    };
    println!("{}", control::ask(&control, &request).await?);
    Ok(())
}
