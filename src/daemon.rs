//! `steliad`: start-up, the entry points, the watchdog, the end.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use sd_notify::NotifyState;
use stelia_kernel::systemd::DbusSystemd;
use stelia_kernel::{System, holder, runtime_folders};
use stelia_settings::{Files, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::prelude::*;

use crate::engine::{Engine, Handle};
use crate::kubelet_config::KubeletConfigReader;
use crate::{adoption, dbus, engine, journal, ledger, publishing, quiet, runtime_check, vm_capacity};

/// Name the runner socket has in its unit (`FileDescriptorName=`).
const RUNNER_SOCKET_NAME: &str = "runner";

/// The user for whom every call on the system bus is permitted.
const ROOT: u32 = 0;

/// Idle threads for blocking work never end. Pods can exhaust the kernel's threads, and a task panics if it needs a thread and none can be
/// started.
const KEEP_ALIVE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Printed by `--check-config`, before a daemon acts on it.
const TAKE_OVER: &str = "cpu-source is steliad: a Guaranteed pod that is no VM has CPUs of its own only while kubelet's \
                         cpuManagerPolicy is static; with the policy none it runs on the shared pool (allocator.md)";

/// Gives virtual machines inside Kubernetes pods exclusive CPUs.
#[derive(Debug, Parser)]
#[command(name = "steliad", version)]
pub struct Arguments {
    /// Check the configuration files and exit.
    #[arg(long)]
    check_config: bool,
    /// Print every setting with its value and its source, and exit.
    #[arg(long)]
    print_config: bool,
    /// Give back the CPUs that pinned instances took from units outside stelia.slice, and exit (used when the package is
    /// removed).
    #[arg(long)]
    release_host: bool,
    /// Hold a new scope open until the end of standard input (used by the daemon itself).
    #[arg(long = "hold-scope", hide = true)]
    hold_scope: bool,
    /// Check whether the OCI runtime of this running container copes with a container whose cgroups are threaded, record the
    /// verdict, and exit (used by steliad-try-runtime@.service).
    #[arg(long = "try-runtime", value_name = "CONTAINER_ID", hide = true)]
    try_runtime: Option<String>,
}

/// What `--check-config` prints of a configuration without mistakes.
fn checked(files: &Files) -> String {
    let read = if files.read.is_empty() {
        vec!["no file, every setting has its default".to_owned()]
    } else {
        files.read.iter().map(|path| path.display().to_string()).collect()
    };
    let ignored: String = files.ignored_lines().map(|line| line + "\n").collect();
    format!("configuration is good: {}\n{ignored}", read.join(", "))
}

/// The program.
pub fn main() -> ExitCode {
    main_on(|system| system)
}

/// The program on a changed system: `beneath` may put a layer between it and the one it finds.
pub fn main_on(beneath: impl FnOnce(System) -> System) -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.hold_scope {
        holder::hold();
        return ExitCode::SUCCESS;
    }
    let loaded = match stelia_settings::load(Path::new("/")) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("steliad: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime_folders::set_runtime_state_folders(loaded.settings.runtime_state.clone());
    if let Some(container_id) = &arguments.try_runtime {
        return runtime_check::main(container_id);
    }
    if arguments.check_config {
        print!("{}", checked(&stelia_settings::files(Path::new("/"))));
        if loaded.settings.policies.allocator.source.allocates() {
            println!("{TAKE_OVER}");
        }
        return ExitCode::SUCCESS;
    }
    if arguments.print_config {
        print!("{}", loaded.print());
        return ExitCode::SUCCESS;
    }
    log();
    if !arguments.release_host {
        journal::warn_of_ignored(&stelia_settings::files(Path::new("/")));
    }
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Readings one at a time, looks at containers, orders and accounts wait here for each other. What a registration needs
        // has threads of its own.
        .max_blocking_threads(4)
        .thread_keep_alive(KEEP_ALIVE)
        .build()
        .context("start the runtime")
        .and_then(|runtime| {
            if arguments.release_host {
                runtime.block_on(release_host())
            } else {
                runtime.block_on(serve(loaded.settings, beneath))
            }
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(
                MESSAGE_ID = journal::FAILED,
                STELIA_REASON = format!("{error:#}"),
                "{error:#}"
            );
            ExitCode::FAILURE
        }
    }
}

/// To the journal when systemd started us, else to standard error.
fn log() {
    let given = std::env::var("STELIAD_LOG").ok();
    let filter = given.and_then(|text| text.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let journal = libsystemd::logging::connected_to_journal()
        .then(tracing_journald::layer)
        .and_then(Result::ok);
    let registry = tracing_subscriber::registry().with(filter);
    match journal {
        Some(layer) => {
            use tracing_journald::{Priority, PriorityMappings};
            let mappings = PriorityMappings {
                info: Priority::Informational,
                debug: Priority::Debug,
                ..PriorityMappings::new()
            };
            let layer = layer
                .with_field_prefix(None)
                .with_syslog_identifier("steliad".into())
                .with_priority_mappings(mappings);
            registry.with(layer).init();
        }
        None => {
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_target(false)
                .with_ansi(false)
                .fmt_fields(debug_fn(|out, field, value| match field.name() {
                    "message" => write!(out, "{value:?}"),
                    // The journal's; the message says the same in words.
                    name if name == "MESSAGE_ID" || name.starts_with("STELIA_") => Ok(()),
                    name => write!(out, " {name}={value:?}"),
                }));
            registry.with(layer).init();
        }
    }
}

async fn release_host() -> anyhow::Result<()> {
    let bus = dbus::connect_client().await.context("connect to the system bus")?;
    let released = engine::release_host(System::kernel(Arc::new(DbusSystemd::new(bus)))).await?;
    for unit in released {
        println!("{unit}: its CPUs are what they were");
    }
    Ok(())
}

async fn serve(settings: Settings, beneath: impl FnOnce(System) -> System) -> anyhow::Result<()> {
    let cancel = CancellationToken::new();
    // Starts the first of the blocking threads now.
    tokio::task::spawn_blocking(|| ()).await.context("start a thread")?;
    // The bus's users have a thread of their own, so they take no time from pods, and a connection of their own: the bus limits the pending replies of each.
    let on_bus = bus_thread(cancel.clone())?;
    let bus = on_bus
        .spawn(dbus::connect())
        .await?
        .context("connect to the system bus")?;
    dbus::check_alone(&bus).await?;
    let systemd = dbus::connect_client().await.context("connect to the system bus")?;
    let system = beneath(System::kernel(Arc::new(DbusSystemd::new(systemd.clone()))));
    let (handle, mut running) = start_engine(system, settings, cancel.clone())?;
    // The pass at start-up adopts what is there; only then does anybody get an answer.
    let first = handle.reconcile().await.context("first pass")?;
    let adopted = handle.view().instances.len();
    tracing::info!(
        MESSAGE_ID = journal::STARTED,
        STELIA_INSTANCES = adopted,
        "{adopted} instances adopted, {} steps taken",
        first.did.steps
    );

    let serving = {
        let (bus, handle) = (bus.clone(), handle.clone());
        on_bus.spawn(async move { dbus::serve_bus(&bus, handle, ROOT).await })
    };
    let mut name = serving.await?.context("serve on the system bus")?;
    let socket = runner_socket().context("take the runner socket from systemd")?;
    if let Some(listener) = socket {
        tokio::spawn(dbus::serve_runner_socket(listener, handle.clone(), cancel.clone()));
    } else {
        tracing::warn!(
            MESSAGE_ID = journal::NO_RUNNER_SOCKET,
            "no runner socket was passed: pods cannot register"
        );
    }
    tokio::spawn(adoption::run(handle.clone(), cancel.clone()));
    tokio::spawn(quiet::run(
        handle.clone(),
        Arc::<quiet::QuietExecutor>::default(),
        cancel.clone(),
    ));
    let folder = Arc::new(publishing::Directory::new(Path::new(
        stelia_api::publication::DIRECTORY,
    )));
    let kubelet = KubeletConfigReader::new(handle.system().root().to_owned());
    tokio::spawn(publishing::run(handle.clone(), kubelet.clone(), folder, cancel.clone()));
    tokio::spawn(vm_capacity::run(handle.clone(), kubelet, cancel.clone()));
    let (sender, signals) = mpsc::unbounded_channel();
    tokio::spawn(dbus::emit_ledger_signals((*bus).clone(), signals));
    let backend = Arc::new(ledger::KernelBackend::new(handle.system(), handle.settings()));
    let ledger = tokio::spawn(ledger::run(handle.clone(), backend, sender, cancel.clone()));
    let mut views = handle.watch();
    notify(&[NotifyState::Ready]);

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut told = None;
    let failure = loop {
        let count = views.borrow_and_update().instances.len();
        // Each notification wakes systemd.
        if told.replace(count) != Some(count) {
            notify(&[NotifyState::Status(&format!("{count} instances"))]);
        }
        tokio::select! {
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
            changed = views.changed() => if changed.is_err() { break None },
            // systemd starts it anew (Restart=), on the bus that is there by then.
            lost = name.lost() => break Some(lost),
            () = systemd.closed() => break Some(dbus::BusError::Gone),
            ended = &mut running => {
                ended.context("the engine failed")?;
                anyhow::bail!("the engine ended by itself");
            }
        }
    };
    // Running VMs stay exactly as they are: the next start adopts them.
    if failure.is_none() {
        notify(&[NotifyState::Stopping]);
    }
    cancel.cancel();
    running.await.context("the engine failed")?;
    ledger.await.context("the ledger's task failed")?;
    failure.map_or(Ok(()), |lost| Err(lost.into()))
}

/// A thread that answers on the system bus, until cancelled.
fn bus_thread(cancel: CancellationToken) -> anyhow::Result<tokio::runtime::Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One reading at a time.
        .max_blocking_threads(1)
        .thread_keep_alive(KEEP_ALIVE)
        .build()
        .context("start the bus's runtime")?;
    let handle = runtime.handle().clone();
    handle.spawn_blocking(|| ());
    let thread = std::thread::Builder::new().name("bus".into());
    thread
        .spawn(move || runtime.block_on(cancel.cancelled()))
        .context("start the bus's thread")?;
    Ok(handle)
}

/// The engine on a thread of its own: whatever callers keep the entry points busy with, it goes on.
fn start_engine(
    system: System,
    settings: Settings,
    cancel: CancellationToken,
) -> anyhow::Result<(Handle, oneshot::Receiver<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the engine's runtime")?;
    let entry_points = tokio::runtime::Handle::current();
    let (engine, handle) = {
        let _inside = runtime.enter();
        Engine::new(system, settings).context("make the engine")?
    };
    let engine = engine.calling_systemd_in(entry_points);
    // Half the watchdog's interval, as sd_watchdog_enabled(3) advises; without one, rarely.
    let heartbeat = sd_notify::watchdog_enabled().map_or(Duration::from_secs(3600), |interval| interval / 2);
    let (ended, running) = oneshot::channel();
    std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            // A task of the runtime's: what a runtime runs itself costs a system call each time it is woken.
            let engine = runtime.spawn(engine.run(cancel, heartbeat, || {
                notify(&[NotifyState::Watchdog]);
            }));
            // One that panicked drops the sender, which tells as much.
            if runtime.block_on(engine).is_ok() {
                let _ = ended.send(());
            }
        })
        .context("start the engine's thread")?;
    Ok((handle, running))
}

/// Telling systemd cannot fail in a way that anybody could act on.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// The socket systemd passed, if it passed one.
fn runner_socket() -> std::io::Result<Option<tokio::net::UnixListener>> {
    let listener = stelia_kernel::activation::listener(RUNNER_SOCKET_NAME)?;
    listener.map(tokio::net::UnixListener::from_std).transpose()
}
