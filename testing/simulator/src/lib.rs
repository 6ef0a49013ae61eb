//! steliad for tests and for experiments; no package contains it. `stelia-simulate` is the engine and both entry points on a
//! node in memory, and changes nothing of the host. `steliad-failpoints` is the daemon that is killed before its n-th
//! change.

pub mod failpoint;
pub mod scenario;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use scenario::{PodSpec, Scenario};
use stelia_kernel::proc::Procs;
use stelia_model::record::Vcpu;
use stelia_settings::Settings;
use stelia_testnode::{KernelFiles, Model, Pod, Qemu};
use steliad::dbus;
use steliad::engine::{AttachRequest, Claim, Engine, Handle, Peer, RegisterRequest, VcpuRequest, Vmm};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How soon a change of the model is in its files.
const SHOW_AFTER: Duration = Duration::from_millis(50);

/// Plays a scenario on the bus of `DBUS_SYSTEM_BUS_ADDRESS` until SIGTERM or SIGINT. It prints `ready: DIRECTORY`, in which every
/// pod has a runner socket of its own: a client that connects to it is that pod's runner.
///
/// # Errors
/// The scenario cannot be played, or there is no bus.
pub async fn serve(scenario: &Path, settings: Settings) -> anyhow::Result<()> {
    // Before anything is made and said to be ready: a signal without a handler would end the process there and then, and
    // the directory would remain. One that comes early is kept until it is waited for.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let directory = tempfile::Builder::new().prefix("steliad-simulate.").tempdir()?;
    let played = play(scenario, settings, directory.path(), told).await;
    directory.close()?;
    played
}

/// Plays until `told` to end.
async fn play(
    scenario: &Path,
    settings: Settings,
    directory: &Path,
    told: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let place = || scenario.display().to_string();
    let text = std::fs::read_to_string(scenario).with_context(place)?;
    let scenario = Scenario::parse(&text).with_context(place)?;
    let (model, mut checkpoint) = scenario.node(directory).with_context(place)?;
    let settings = Settings {
        kubelet_root: directory.join("kubelet"),
        ..settings
    };
    let (engine, handle) = Engine::new(model.system(), settings).context("make the engine")?;
    let cancel = CancellationToken::new();
    let running = tokio::spawn(engine.run(cancel.clone(), Duration::from_secs(3600), || {}));
    handle.reconcile().await?;
    for spec in &scenario.pods {
        let pod = spec.start(&model, &mut checkpoint).with_context(place)?;
        bring_up(&model, &handle, spec, &pod)
            .await
            .with_context(|| spec.uid.clone())?;
        let socket = directory.join(format!("{}.socket", spec.uid));
        let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
        let runner = Arc::new(model.pidfd(pod.init).context("the runner's pidfd")?);
        tokio::spawn(dbus::serve_runner_socket_as(
            listener,
            runner,
            handle.clone(),
            cancel.clone(),
        ));
    }
    for meddle in &scenario.meddles {
        meddle.act(&model).with_context(place)?;
    }
    let bus = dbus::connect().await.context("connect to the bus")?;
    let player = nix::unistd::geteuid().as_raw();
    dbus::serve_bus(&bus, handle.clone(), player)
        .await
        .context("serve on the bus")?;
    show(&model, &mut KernelFiles::default(), told, || {
        println!("ready: {}", directory.display())
    })
    .await
    .context("write the node's files")?;
    cancel.cancel();
    running.await.context("the engine failed")?;
    Ok(())
}

/// Until `told`, writes the model's kernel as files whenever the daemon has changed it: what reads files sees no model.
async fn show(
    model: &Model,
    files: &mut KernelFiles,
    told: impl Future<Output = ()>,
    ready: impl FnOnce(),
) -> std::io::Result<()> {
    let mut told = std::pin::pin!(told);
    let mut written = model.changes();
    files.write(model)?;
    ready();
    loop {
        tokio::select! {
            () = &mut told => return Ok(()),
            () = tokio::time::sleep(SHOW_AFTER) => {}
        }
        let changes = model.changes();
        if changes != written {
            written = changes;
            files.write(model)?;
        }
    }
}

/// What a pod's runner does: it registers, starts QEMU and attaches the vCPUs.
async fn bring_up(model: &Model, handle: &Handle, spec: &PodSpec, pod: &Pod) -> anyhow::Result<()> {
    handle.register(register_request(model, pod)?).await?;
    if spec.vcpus == 0 {
        return Ok(());
    }
    let qemu = model.add_qemu(pod.init, spec.vcpus)?;
    handle.attach(attach_request(model, pod, &qemu)?).await?;
    Ok(())
}

/// A RegisterInstance of a pod's runner, in the form in which an entry point passes it to the engine.
///
/// # Errors
/// The runner or its anchor has ended.
pub fn register_request(model: &Model, pod: &Pod) -> anyhow::Result<RegisterRequest> {
    Ok(RegisterRequest {
        claim: Claim::default(),
        caller: Some((pod.init, Peer::of(model.cgroup(pod.init)?))),
        origin: None,
        anchor: Some(model.pidfd(pod.anchor)?),
        timeout: Duration::ZERO,
        adopting: None,
    })
}

/// An AttachVcpus of a pod's runner, in the form in which an entry point passes it to the engine.
///
/// # Errors
/// QEMU or one of its threads has ended.
pub fn attach_request(model: &Model, pod: &Pod, qemu: &Qemu) -> anyhow::Result<AttachRequest> {
    let mut vcpus = Vec::new();
    for (index, tid) in (0..).zip(&qemu.vcpus) {
        let numbers = model.numbers(*tid)?;
        vcpus.push(VcpuRequest {
            vcpu: Vcpu {
                index,
                props: BTreeMap::new(),
            },
            thread: numbers.last().copied().unwrap_or_default(),
        });
    }
    Ok(AttachRequest {
        pod: pod.uid.clone(),
        vmm: Vmm::Pidfd(model.pidfd(qemu.pid)?),
        vcpus,
        iothreads: Vec::new(),
    })
}
