//! `stelia-publish`: its command line, start and end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use clap::Parser;
use kube::Client;
use sd_notify::NotifyState;
use stelia_credentials::{self as credentials, Files};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::options::PublishOptions;
use crate::rebind::Rebinder;
use crate::rebind::daemon::Daemon;
use crate::source::{Reading, Source};
use crate::status::Status;
use crate::withdraw::{WITHDRAWAL_TIMEOUT, withdraw};
use crate::{Publisher, http_server};

/// How long `--once` tries.
const ONCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Publishes the state of a node, as steliad reports it, in the Kubernetes API server.
///
/// Writes the node's NodeResourceTopology object. Everything else must be enabled by an option. Most options can also be set by an
/// environment variable.
#[derive(Debug, Parser)]
#[command(name = "stelia-publish", version)]
pub struct Arguments {
    /// Directory in which steliad writes its report.
    #[arg(long, value_name = "DIR", env = "STELIA_DIRECTORY", default_value = stelia_api::publication::DIRECTORY)]
    directory: PathBuf,
    /// Name of the Node. A report about another node is not published. Default: the name in steliad's report.
    #[arg(long, value_name = "NAME", env = "STELIA_NODE_NAME")]
    node_name: Option<String>,
    /// File with the address of the API server and the credentials. It is read again when it or a file that it names changes.
    /// Default: the service account of the pod in which the program runs.
    #[arg(long, value_name = "FILE", env = "STELIA_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    options: PublishOptions,
    /// Publish once and exit. The exit code is 1 if something could not be published within 60 s.
    #[arg(long, conflicts_with = "withdraw")]
    once: bool,
    /// Remove everything that was published about this node and exit. The exit code is 1 if something remains.
    #[arg(long)]
    withdraw: bool,
    /// Serve /metrics, /healthz and /readyz on this address.
    #[arg(long, value_name = "ADDRESS:PORT", env = "STELIA_METRICS")]
    metrics: Option<SocketAddr>,
    /// Carry out the RebindResources of this node. polkit must permit the program's user the action io.stelia.Isolation1.rebind. With --once
    /// and --withdraw it does nothing.
    #[arg(long, env = "STELIA_REBIND")]
    rebind: bool,
    /// Format of the messages on standard error.
    #[arg(long, value_name = "FORMAT", env = "STELIA_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// One line of text per message.
    Text,
    /// One JSON object per message.
    Json,
}

impl Arguments {
    fn options(&self, node: String) -> PublishOptions {
        let mut options = self.options.clone().of_node(node);
        if self.once {
            options.start_spread = Duration::ZERO;
        }
        options.boot_id.get_or_insert_with(kernels_boot_id);
        let since = SystemTime::UNIX_EPOCH.elapsed();
        options.started_us = since.map_or(0, |since| since.as_micros() as u64);
        options
    }
}

/// As systemd writes it (`%b`); empty where it is not shown.
fn kernels_boot_id() -> String {
    let id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    id.trim().replace('-', "")
}

/// Our own messages alone: kube tells of each failed request, and what matters of that is told here once.
fn log(format: LogFormat) {
    let ours = Targets::new().with_target("stelia_publish", tracing::Level::INFO);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    let registry = tracing_subscriber::registry();
    match format {
        // systemd and the container runtime add the time.
        LogFormat::Text => registry.with(layer.without_time().with_filter(ours)).init(),
        LogFormat::Json => registry.with(layer.json().with_filter(ours)).init(),
    }
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log(arguments.log_format);
    // One thread, and none for blocking calls but where the resolver needs one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build();
    let runtime = runtime.context("start tokio's runtime");
    let result = runtime.and_then(|runtime| runtime.block_on(run(&arguments)));
    result.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}

async fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (client, files) = client(arguments)?;
    let source = Source::new(arguments.directory.clone());
    let readings = source.readings();
    if arguments.withdraw {
        let reading = readings.borrow().clone();
        let node = arguments.node_name.clone().or(named(&reading));
        let node = node.context("steliad tells no name of the node: --node-name")?;
        let options = arguments.options(node);
        let all = withdraw(&client, &options, reading.publication.as_deref());
        let all = tokio::time::timeout(WITHDRAWAL_TIMEOUT, all).await;
        let late = || {
            format!(
                "not everything was taken back within {} s",
                WITHDRAWAL_TIMEOUT.as_secs()
            )
        };
        let all = all.with_context(late)?;
        for done in &all.done {
            println!("taken back: {done}");
        }
        for left in &all.left {
            eprintln!("stelia-publish: not taken back: {left}");
        }
        return Ok(code(all.left.is_empty()));
    }
    if arguments.once {
        let reading = readings.borrow().clone();
        let node = named(&reading).with_context(|| no_publication(&arguments.directory, &reading))?;
        let node = arguments.node_name.clone().unwrap_or(node);
        let publisher = Publisher::new(client, arguments.options(node));
        let status = publisher.once(readings, ONCE_TIMEOUT).await;
        return Ok(code(status.settled && status.problems.is_empty()));
    }
    let listener = match arguments.metrics {
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.with_context(|| format!("listen on {address}"))?)
        }
        None => None,
    };
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    notify(&[NotifyState::Ready, NotifyState::Status("waits for steliad")]);
    let cancel = CancellationToken::new();
    let rebinds = arguments.rebind.then(|| self::client(arguments)).transpose()?;
    let publish = async {
        let node = match &arguments.node_name {
            Some(name) => name.clone(),
            None => first_name(readings.clone()).await,
        };
        tracing::info!("publishes node {node}");
        let options = arguments.options(node);
        let rebound = async {
            match rebinds {
                Some((client, files)) => {
                    let rebinder = Rebinder::new(client, options.clone(), Daemon::on_system_bus());
                    rebinder.with_credentials(files).run().await;
                }
                None => std::future::pending().await,
            }
        };
        let publisher = Publisher::new(client, options.clone()).with_credentials(files);
        let status = publisher.status();
        let served = async {
            match listener {
                Some(listener) => http_server::serve(listener, status.clone()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = publisher.run(readings, cancel.clone()) => {}
            () = served => {}
            () = log_status(status.clone()) => {}
            () = rebound => {}
        }
    };
    tokio::select! {
        () = source.follow() => {}
        () = publish => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    notify(&[NotifyState::Stopping]);
    Ok(ExitCode::SUCCESS)
}

/// A client of the API server, and what renews it.
fn client(arguments: &Arguments) -> anyhow::Result<(Client, Files)> {
    let kubeconfig = arguments.kubeconfig.clone().map(credentials::Source::Kubeconfig);
    let made = Files::client(kubeconfig.unwrap_or(credentials::Source::Pod));
    // Its text has its causes.
    made.map_err(|error| anyhow!("the API server's address and credentials: {error}"))
}

fn code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn named(reading: &Reading) -> Option<String> {
    Some(reading.publication.as_ref()?.node.clone())
}

fn no_publication(directory: &Path, reading: &Reading) -> String {
    let problem = reading.problem.as_deref().unwrap_or("no file");
    format!("steliad tells nothing in {}: {problem}", directory.display())
}

/// The name that the daemon tells, as soon as it does.
async fn first_name(mut readings: watch::Receiver<Reading>) -> String {
    let named_at_last = readings.wait_for(|reading| reading.publication.is_some()).await;
    match named_at_last.map(|reading| named(&reading)) {
        Ok(Some(name)) => name,
        // The source ends with the program only.
        _ => std::future::pending().await,
    }
}

/// Shows in `systemctl status` what is wrong.
async fn log_status(mut status: watch::Receiver<Status>) {
    let mut before = String::new();
    loop {
        let line = line(&status.borrow_and_update());
        if line != before {
            notify(&[NotifyState::Status(&line)]);
            before = line;
        }
        if status.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn line(status: &Status) -> String {
    if status.problems.is_empty() {
        let settled = status.settled;
        return if settled {
            "everything is published".into()
        } else {
            "publishes".into()
        };
    }
    let problems = status.problems.iter();
    let problems: Vec<String> = problems
        .map(|(part, problem)| format!("{}: {problem}", part.name()))
        .collect();
    problems.join("; ")
}

fn notify(state: &[NotifyState<'_>]) {
    // Telling systemd cannot fail in a way that anybody could act on.
    let _ = sd_notify::notify(state);
}
