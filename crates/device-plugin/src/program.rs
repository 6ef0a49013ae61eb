//! The command line, start and end of `stelia-device-plugin`.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::api::PLUGIN_FOLDER;
use clap::Parser;
use rustix::fs::Mode;
use sd_notify::NotifyState;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cdi;
use crate::file_error::FileError;
use crate::plugin::{Configuration, run};
use crate::status::notify;

/// The program that kubelet mounts into containers.
const RUNNER: &str = "/usr/bin/stelia-runner";

/// The threads for blocking calls: only zbus makes any.
const BLOCKING_THREADS: usize = 2;

/// Offers VMs to kubelet as the resource stelia.io/vm, while steliad admits them.
///
/// A container that asks for stelia.io/vm gets the runner, the directory of its socket, and the device nodes of a VM. The settings
/// device-plugin-vms, device-plugin-device-nodes and device-plugin-cdi are in steliad.toml(5).
#[derive(Debug, Parser)]
#[command(name = "stelia-device-plugin", version)]
pub struct Arguments {
    /// kubelet's directory of device plugins' sockets.
    #[arg(long, value_name = "DIR", env = "STELIA_PLUGIN_DIR", default_value = PLUGIN_FOLDER)]
    plugin_dir: PathBuf,
}

/// Why the program ends with an error.
#[derive(Debug, Error)]
enum Failure {
    #[error("{what}: {cause}")]
    System { what: &'static str, cause: std::io::Error },
    #[error("{0}")]
    Settings(#[from] stelia_settings::SettingsError),
    #[error("--plugin-dir {}: not an absolute path", .0.display())]
    NotAbsolute(PathBuf),
    #[error("{0}: the folder was made after this process started, and only a new process can write there")]
    ReadOnly(#[from] FileError),
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
    move |cause| Failure::System { what, cause }
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log();
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> Result<(), Failure> {
    // The socket is only for root.
    rustix::process::umask(Mode::from_raw_mode(0o177));
    let settings = stelia_settings::load(Path::new("/"))?.settings.device_plugin;
    let folder = arguments.plugin_dir.clone();
    if !folder.is_absolute() {
        return Err(Failure::NotAbsolute(folder));
    }
    let configuration = Configuration {
        folder,
        settings,
        bus: None,
        runner: RUNNER.into(),
        socket_folder: socket_folder(),
        cdi_folder: cdi::FOLDER.into(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(failed("start the runtime"))?;
    runtime.block_on(until_signal(configuration))
}

/// The directory of the runner socket, which stays the same when the socket is made anew.
fn socket_folder() -> PathBuf {
    let socket = Path::new(stelia_api::RUNNER_SOCKET);
    socket.parent().unwrap_or(socket).to_owned()
}

async fn until_signal(configuration: Configuration) -> Result<(), Failure> {
    let caught = |kind| signal(kind).map_err(failed("catch signals"));
    let (mut terminate, mut interrupt) = (caught(SignalKind::terminate())?, caught(SignalKind::interrupt())?);
    tokio::select! {
        ended = run(configuration) => {
            let never: Infallible = ended?;
            match never {}
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    notify(&[NotifyState::Stopping]);
    tracing::info!("ended by a signal; the plugin's socket is removed");
    Ok(())
}

/// To the journal when systemd started the program, else to standard error.
fn log() {
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("stelia_device_plugin", LevelFilter::INFO);
    let registry = tracing_subscriber::registry().with(filter);
    let journal = libsystemd::logging::connected_to_journal()
        .then(tracing_journald::layer)
        .and_then(Result::ok);
    match journal {
        Some(layer) => {
            use tracing_journald::{Priority, PriorityMappings};
            let mappings = PriorityMappings {
                info: Priority::Informational,
                ..PriorityMappings::new()
            };
            let layer = layer
                .with_field_prefix(None)
                .with_syslog_identifier("stelia-device-plugin".into());
            registry.with(layer.with_priority_mappings(mappings)).init();
        }
        None => {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(false);
            registry.with(layer.with_target(false).without_time()).init();
        }
    }
}
