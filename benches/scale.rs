//! What hundreds of VMs on one node cost the daemon: `make bench-scale`.
//!
//! The engine runs on the model of a node, without D-Bus. kubelet's file has every pod from the start, as after a node's
//! boot, and the VMs come up one after the other, each with 2 vCPUs. What is told is CPU time of the whole process, the
//! model's own share of it included, without what the pods themselves do. It ends with 1 when a bar is missed.
//!
//! | in the environment | |
//! |---|---|
//! | `STELIA_SCALE` | other numbers of VMs: `8 64` |
//! | `STELIA_SCALE_PRINT` | set: no bar is held |

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, Cgroups, File, Limits};
use stelia_kubelet::PodUid;
use stelia_settings::Settings;
use stelia_simulator::{attach_request, register_request};
use stelia_testnode::kubelet::Checkpoint;
use stelia_testnode::{Counts, Kernel, Model, topology};
use steliad::engine::{Claim, Engine, Handle, Peer, RegisterRequest};
use tokio_util::sync::CancellationToken;

/// CPU time to bring up one VM, at any number of them.
const BRING_UP: Duration = Duration::from_millis(5);
/// How much dearer one VM may be at 512 than at 64.
const GROWTH: f64 = 1.3;
/// CPU time of a full audit at 512 VMs.
const AUDIT: Duration = Duration::from_millis(50);
/// CPU time from a change of kubelet's file until all floats and anchors follow, at 512 VMs.
const KUBELET: Duration = Duration::from_millis(20);
/// CPU time of a new daemon until every runner of 512 that return at once is served.
const RESTART: Duration = Duration::from_millis(250);

const NUMBERS: [u32; 5] = [8, 64, 110, 256, 512];
/// Growth is told between these.
const FEW: u32 = 64;
const MANY: u32 = 512;
const VCPUS: u32 = 2;
const SOCKETS: u32 = 2;
/// CPUs of each socket that no VM has.
const SHARED: u32 = 32;
/// When nothing happened for so long, the engine has done what there was to do.
const QUIET: Duration = Duration::from_millis(300);
/// How long floats may take to follow.
const PATIENCE: Duration = Duration::from_secs(60);
const REPEATS: u32 = 5;

/// What came of one number of VMs.
struct Figures {
    vms: u32,
    bring_up: Duration,
    /// Of that, inside the model.
    model: Duration,
    calls: Counts,
    audit: Duration,
    audit_calls: Counts,
    kubelet: Duration,
    kubelet_calls: Counts,
    /// By the clock, from the write to the last float.
    kubelet_took: Duration,
    /// A new daemon adopts everything, and every runner returns to it at once.
    restart: Duration,
    restart_calls: Counts,
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// CPU time of the process, without that of what it does in the pods' place.
#[derive(Default)]
struct Meter {
    pods: Duration,
}

impl Meter {
    fn now(&self) -> Duration {
        cpu_time(ClockId::ProcessCPUTime).saturating_sub(self.pods)
    }

    /// Something that is not the daemon's to do.
    fn pods<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let before = cpu_time(ClockId::ThreadCPUTime);
        let done = act();
        self.pods += cpu_time(ClockId::ThreadCPUTime).saturating_sub(before);
        done
    }
}

fn uid(number: u32) -> anyhow::Result<PodUid> {
    PodUid::parse(&format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")).context("a pod's UID")
}

/// CPUs of a socket, which has room for half of the VMs.
fn cpus_of_socket(vms: u32) -> u32 {
    SHARED + vms.div_ceil(SOCKETS) * VCPUS
}

/// The CPUs of one VM: one core, the sockets in turn.
fn cpus_of(number: u32, vms: u32) -> CpuSet {
    let first = number % SOCKETS * cpus_of_socket(vms) + SHARED + number / SOCKETS * VCPUS;
    (first..first + VCPUS).collect()
}

fn main() -> anyhow::Result<()> {
    let numbers = match std::env::var("STELIA_SCALE") {
        Ok(text) => text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u32>, _>>()?,
        Err(_) => NUMBERS.to_vec(),
    };
    println!(
        "{:>4} {:>14} {:>12} {:>6} {:>6} {:>6} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "VMs",
        "bring-up/VM",
        "of it, model",
        "reads",
        "writes",
        "moves",
        "systemd",
        "audit",
        "its reads",
        "writes",
        "kubelet",
        "its reads",
        "writes",
        "by clock",
        "restart",
        "its reads"
    );
    let mut all: Vec<Figures> = Vec::new();
    for vms in numbers {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let figures = runtime.block_on(run(vms)).with_context(|| format!("{vms} VMs"))?;
        // A worker of the runtime that waits must not hold up the next number.
        runtime.shutdown_background();
        let per_vm = |calls: u64| calls as f64 / f64::from(vms);
        println!(
            "{:>4} {:>14.3?} {:>12.3?} {:>6.1} {:>6.1} {:>6.1} {:>8.1} {:>10.3?} {:>9} {:>9} {:>9.3?} {:>9} {:>9} {:>9.3?} {:>9.3?} {:>9}",
            vms,
            figures.bring_up,
            figures.model,
            per_vm(figures.calls.reads),
            per_vm(figures.calls.writes),
            per_vm(figures.calls.moves),
            per_vm(figures.calls.systemd),
            figures.audit,
            figures.audit_calls.reads,
            figures.audit_calls.writes + figures.audit_calls.moves,
            figures.kubelet,
            figures.kubelet_calls.reads,
            figures.kubelet_calls.writes + figures.kubelet_calls.moves,
            figures.kubelet_took,
            figures.restart,
            figures.restart_calls.reads,
        );
        all.push(figures);
    }
    let missed = missed(&all);
    for bar in &missed {
        println!("missed: {bar}");
    }
    ensure!(
        missed.is_empty() || std::env::var_os("STELIA_SCALE_PRINT").is_some(),
        "{} bars are missed",
        missed.len()
    );
    Ok(())
}

fn missed(all: &[Figures]) -> Vec<String> {
    let mut missed = Vec::new();
    let mut hold = |what: String, found: Duration, bar: Duration| {
        if found > bar {
            missed.push(format!("{what}: {found:.3?} of CPU time, the bar is {bar:?}"));
        }
    };
    for figures in all {
        hold(
            format!("bring-up of one of {} VMs", figures.vms),
            figures.bring_up,
            BRING_UP,
        );
    }
    let of = |vms: u32| all.iter().find(|figures| figures.vms == vms);
    if let Some(many) = of(MANY) {
        hold(format!("full audit of {MANY} VMs"), many.audit, AUDIT);
        hold(format!("kubelet's change at {MANY} VMs"), many.kubelet, KUBELET);
        hold(format!("a new daemon with {MANY} VMs"), many.restart, RESTART);
    }
    if let (Some(few), Some(many)) = (of(FEW), of(MANY)) {
        let growth = |of: fn(&Figures) -> Duration| of(many).as_secs_f64() / of(few).as_secs_f64();
        let (whole, model) = (growth(|figures| figures.bring_up), growth(|figures| figures.model));
        println!("growth of one VM's bring-up from {FEW} to {MANY} VMs: {whole:.2}; of the model's share: {model:.2}");
        if whole > GROWTH {
            missed.push(format!("growth of one VM's bring-up: {whole:.2}, the bar is {GROWTH}"));
        }
    }
    missed
}

async fn run(vms: u32) -> anyhow::Result<Figures> {
    // What a disk takes for the files that stand in for the kernel's is not the daemon's either.
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() {
        tempfile::tempdir_in(memory)?
    } else {
        tempfile::tempdir()?
    };
    let topology = topology(SOCKETS, cpus_of_socket(vms) / 2, 2);
    let model = Model::node(&topology, directory.path(), Kernel::V6_12)?;
    let settings = Settings {
        kubelet_root: directory.path().join("kubelet"),
        ..Settings::default()
    };
    let mut checkpoint = Checkpoint::create(&settings.kubelet_root, &topology.online())?;
    for number in 0..vms {
        checkpoint.admit(&uid(number)?, "vm", &cpus_of(number, vms))?;
    }
    let (engine, handle) = Engine::new(model.system(), settings.clone())?;
    let cancel = CancellationToken::new();
    let running = tokio::spawn(engine.run(cancel.clone(), Duration::from_secs(3600), || {}));
    handle.reconcile().await?;

    let mut meter = Meter::default();
    let (bring_up, share, calls) = bring_up(&model, &handle, &mut meter, vms).await?;
    let (audit, audit_calls) = audit(&model, &handle, &mut meter).await?;
    let (kubelet, kubelet_calls, kubelet_took) = kubelet(&model, &mut checkpoint, &mut meter, vms).await?;

    cancel.cancel();
    running.await.context("the engine failed")?;
    let (restart, restart_calls) = restart(&model, settings, &meter, vms).await?;
    Ok(Figures {
        restart,
        restart_calls,
        vms,
        bring_up: bring_up / vms,
        model: share / vms,
        calls,
        audit,
        audit_calls,
        kubelet,
        kubelet_calls,
        kubelet_took,
    })
}

async fn bring_up(
    model: &Model,
    handle: &Handle,
    meter: &mut Meter,
    vms: u32,
) -> anyhow::Result<(Duration, Duration, Counts)> {
    let limits = Limits {
        memory_max: Some(4 << 30),
        pids_max: Some(4096),
        cpu_weight: Some(79),
        ..Limits::default()
    };
    model.measure_time(true);
    let (counts, before) = (model.counts(), meter.now());
    for number in 0..vms {
        let uid = uid(number)?;
        let pod = meter.pods(|| model.add_pod(&uid, &cpus_of(number, vms), &limits))?;
        let request = meter.pods(|| register_request(model, &pod))?;
        handle
            .register(request)
            .await
            .with_context(|| format!("register VM {number}"))?;
        let qemu = meter.pods(|| model.add_qemu(pod.init, VCPUS))?;
        let request = meter.pods(|| attach_request(model, &pod, &qemu))?;
        handle
            .attach(request)
            .await
            .with_context(|| format!("attach VM {number}"))?;
    }
    tokio::time::sleep(QUIET).await;
    let took = meter.now().saturating_sub(before);
    let (share, calls) = (model.time_spent(), model.counts().since(counts));
    model.measure_time(false);
    let view = handle.view();
    let isolated = view
        .instances
        .values()
        .filter(|instance| instance.state == stelia_api::State::Isolated);
    let isolated = isolated.filter(|instance| instance.degraded.is_empty()).count();
    ensure!(isolated == vms as usize, "only {isolated} of {vms} VMs are isolated");
    Ok((took, share, calls))
}

/// The daemon is started anew, and every runner asks for its registration again before it has looked at anything.
async fn restart(model: &Model, settings: Settings, meter: &Meter, vms: u32) -> anyhow::Result<(Duration, Counts)> {
    let (counts, before) = (model.counts(), meter.now());
    let (engine, handle) = Engine::new(model.system(), settings)?;
    let cancel = CancellationToken::new();
    let running = tokio::spawn(engine.run(cancel.clone(), Duration::from_secs(3600), || {}));
    let mut calls = Vec::new();
    for number in 0..vms {
        let pod = uid(number)?;
        let domain = CgroupPath::slice().child(&pod.scope()).child("instance");
        let procs = model.read(&domain, File::Procs)?;
        let runner = procs.lines().next().context("a runner")?.parse()?;
        let request = RegisterRequest {
            claim: Claim::default(),
            caller: Some((runner, Peer::Instance(pod.clone()))),
            origin: None,
            anchor: None,
            timeout: Duration::from_secs(5),
            adopting: None,
        };
        let handle = handle.on_behalf_of(&pod);
        calls.push(tokio::spawn(async move { handle.register(request).await }));
    }
    for call in calls {
        call.await?.context("a runner was refused")?;
    }
    let took = meter.now().saturating_sub(before);
    let calls = model.counts().since(counts);
    cancel.cancel();
    running.await.context("the engine failed")?;
    Ok((took, calls))
}

async fn audit(model: &Model, handle: &Handle, meter: &mut Meter) -> anyhow::Result<(Duration, Counts)> {
    let mut took = Vec::new();
    let mut calls = Counts::default();
    for _ in 0..REPEATS {
        let (counts, before) = (model.counts(), meter.now());
        let report = handle.reconcile().await?;
        took.push(meter.now().saturating_sub(before));
        calls = model.counts().since(counts);
        ensure!(report.did.steps == 0, "an audit found something to do: {report:?}");
    }
    Ok((median(took), calls))
}

/// Pods without VMs come: each takes a CPU of every socket, so that every float must let one go.
async fn kubelet(
    model: &Model,
    checkpoint: &mut Checkpoint,
    meter: &mut Meter,
    vms: u32,
) -> anyhow::Result<(Duration, Counts, Duration)> {
    let floats = (0..vms).map(|number| {
        let scope = CgroupPath::slice().child(&uid(number)?.scope());
        Ok(scope.child("instance").child("float"))
    });
    let floats = floats.collect::<anyhow::Result<Vec<CgroupPath>>>()?;
    let (mut took, mut by_clock) = (Vec::new(), Vec::new());
    let mut calls = Counts::default();
    for number in 0..REPEATS {
        let cpus: CpuSet = (0..SOCKETS)
            .map(|socket| socket * cpus_of_socket(vms) + number)
            .collect();
        let (counts, started, before) = (model.counts(), Instant::now(), meter.now());
        let written = meter.pods(|| {
            checkpoint
                .admit(&uid(vms + number)?, "app", &cpus)
                .context("write kubelet's file")
        });
        written?;
        // The one looked at last is where the next look begins: most looks are one read.
        let mut left = floats.clone();
        while let Some(float) = left.last() {
            let list = meter.pods(|| Ok::<CpuSet, anyhow::Error>(model.read(float, File::Cpus)?.parse()?))?;
            if list.is_disjoint(&cpus) {
                left.pop();
                continue;
            }
            ensure!(
                started.elapsed() < PATIENCE,
                "{float} still has {list}, {cpus} went to another pod"
            );
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        by_clock.push(started.elapsed());
        tokio::time::sleep(QUIET).await;
        took.push(meter.now().saturating_sub(before));
        calls = model.counts().since(counts);
    }
    Ok((median(took), calls, median(by_clock)))
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}
