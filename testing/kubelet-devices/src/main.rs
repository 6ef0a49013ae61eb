//! `kubelet-devices`: kubelet's side of the device plugin API; see the README.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use stelia_device_plugin::api::PLUGIN_FOLDER;
use test_kubelet_devices::control::{self, Request};
use test_kubelet_devices::kubelet::Kubelet;
use test_kubelet_devices::offered::{self, Offered};
use test_kubelet_devices::unusual_calls;

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
    #[command(flatten)]
    Request(Request),
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
    /// A call that kubelet would not make
    Call {
        /// The plugin's socket
        socket: PathBuf,
        #[command(subcommand)]
        call: Call,
    },
}

#[derive(Debug, Subcommand)]
enum Call {
    /// Allocate for containers, each a list of devices with commas
    Allocate {
        /// A container's devices; an empty text is none
        containers: Vec<String>,
    },
    /// Allocate with an ID of so many bytes
    LongId {
        /// How many bytes
        bytes: usize,
    },
    /// Open streams that nobody reads, until standard input ends
    Streams {
        /// How many connections
        connections: usize,
        /// How many streams a connection
        streams: usize,
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
        Command::Call { socket, call } => return unusual(&socket, call).await,
        Command::Request(request) => request,
    };
    println!("{}", control::ask(&control, &request).await?);
    Ok(())
}

async fn unusual(socket: &Path, call: Call) -> anyhow::Result<()> {
    match call {
        Call::Allocate { containers } => {
            let ids = |text: &String| text.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
            let containers: Vec<Vec<String>> = containers.iter().map(ids).collect();
            let answers = unusual_calls::allocate(socket, &containers).await?;
            println!("{}", serde_json::to_string(&answers).context("write JSON")?);
        }
        Call::LongId { bytes } => unusual_calls::long_id(socket, bytes).await?,
        Call::Streams { connections, streams } => {
            let unread = unusual_calls::open(socket, connections, streams).await;
            let (connections, streams) = (unread.connections, unread.streams);
            println!("{connections} connections, {streams} streams, {:?}", unread.refusal);
            let mut input = tokio::io::BufReader::new(tokio::io::stdin());
            let mut line = String::new();
            let read = tokio::io::AsyncBufReadExt::read_line(&mut input, &mut line).await;
            read.context("read standard input")?;
            drop(unread);
        }
    }
    Ok(())
}
