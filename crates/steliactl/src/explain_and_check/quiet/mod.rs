//! `quiet`: which device interrupts and kernel threads were moved off the VMs' CPUs, which could not be, and what is left
//! there, with its cure.

mod text;
mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::Word;
use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause, Thread};
use stelia_cpus::CpuSet;
use stelia_settings::Isolation;

use crate::shared::daemon::{Client, Description, Failure, Pod};
use crate::shared::kernel::Roots;
use crate::shared::kernel::interrupts::{device_interrupts, read_table};
use crate::shared::output::{Render, TextStyle, counted};

/// Prefix of the name of a workqueue's rescuer, a thread that runs only when memory is short.
const RESCUER: &str = "kworker/R-";

/// Until the daemon has read its settings it says nothing of interrupts.
const STARTING: &str = "steliad has just started";

/// Between the two readings of `/proc/interrupts`.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What was done on the node, and what is left by VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Quietness {
    /// The setting `irq-steering`; empty while the daemon starts.
    steering: String,
    /// Why nothing else is known.
    problem: Option<String>,
    answered_us: u64,
    /// Device interrupts that the kernel has.
    interrupts: u32,
    /// Those whose mask was changed.
    moved: u32,
    irqbalance: Irqbalance,
    /// Kernel threads that were given the shared CPUs.
    threads_moved: u64,
    vms: Vec<Vm>,
    /// Those of no VM in particular.
    problems: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Vm {
    #[serde(flatten)]
    pod: Pod,
    isolation: Word<Isolation>,
    exclusive_cpus: CpuSet,
    /// Device interrupts on its CPUs, within [`MEASURE_INTERVAL`]: 0 is the promise. `None` where they cannot be counted.
    device_interrupts_per_second: Option<u64>,
    interrupts_remaining: Vec<Interrupt>,
    threads_remaining: Vec<Kthread>,
    problems: Vec<String>,
}

/// A device interrupt that reaches CPUs of the VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Interrupt {
    irq: u32,
    name: String,
    cpus: CpuSet,
    reason: RemainingCause,
    why: String,
    cure: &'static str,
    /// How often it was seen there; of all VMs' CPUs that it reaches.
    count: u64,
}

/// A kernel thread that may run on CPUs of the VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Kthread {
    tid: i32,
    name: String,
    cpus: CpuSet,
    why: String,
}

/// Device interrupts by pod since boot.
type Counts = BTreeMap<String, u64>;

/// What is left of all VMs, or of one.
///
/// # Errors
/// No such instance, or the daemon does not answer.
pub(crate) async fn gather(client: &Client, roots: &Roots, vm: Option<&str>) -> Result<Quietness, Failure> {
    let pod = client.pod(vm).await?;
    let described = client.describe().await?;
    let (began, before) = (Instant::now(), counts(&described, roots));
    tokio::time::sleep(MEASURE_INTERVAL).await;
    let now = counts(&described, roots);
    let seconds = began.elapsed().as_secs_f64();
    let pod = pod.as_ref().map(|pod| pod.pod_uid.as_str());
    Ok(quietness(&described, pod, |uid| {
        let grown = now.get(uid)?.checked_sub(*before.get(uid)?)?;
        // One interrupt must not be rounded away: 0 is a promise.
        Some((grown as f64 / seconds).ceil() as u64)
    }))
}

fn counts(described: &Description, roots: &Roots) -> Counts {
    let Some(table) = read_table(&roots.proc) else {
        return Counts::new();
    };
    let instances = described.node.instances.iter();
    instances
        .filter_map(|(uid, one)| Some((uid.to_string(), device_interrupts(&table, &one.exclusive)?)))
        .collect()
}

/// `rate` is of a pod's CPUs.
fn quietness(described: &Description, pod: Option<&str>, rate: impl Fn(&str) -> Option<u64>) -> Quietness {
    let quiet = &described.node.quiet;
    let report = &quiet.report;
    let instances = described.node.instances.iter();
    // A VM without CPUs of its own has nothing to be kept quiet.
    let instances =
        instances.filter(|(uid, one)| !one.exclusive.is_empty() && pod.is_none_or(|pod| pod == uid.as_str()));
    let vms = instances.map(|(uid, one)| Vm {
        pod: Pod::of(uid, one),
        isolation: one.isolation.clone(),
        exclusive_cpus: one.exclusive.clone(),
        device_interrupts_per_second: rate(uid.as_str()),
        interrupts_remaining: interrupts_on(quiet, &one.exclusive),
        threads_remaining: threads_on(quiet, &one.exclusive),
        problems: problems_of(quiet, uid.as_str()),
    });
    Quietness {
        steering: quiet.steering.clone(),
        problem: quiet
            .problem
            .clone()
            .or_else(|| quiet.steering.is_empty().then(|| STARTING.to_owned())),
        answered_us: quiet.answered_us,
        interrupts: report.interrupts,
        moved: report.moved,
        irqbalance: report.irqbalance,
        threads_moved: report.threads_moved,
        vms: vms.collect(),
        problems: problems_of(quiet, ""),
    }
}

fn problems_of(quiet: &Quiet, pod: &str) -> Vec<String> {
    let problems = quiet.report.problems.iter().filter(|one| one.pod == pod);
    problems.map(|one| one.text.clone()).collect()
}

fn interrupts_on(quiet: &Quiet, cpus: &CpuSet) -> Vec<Interrupt> {
    let reaching = quiet.report.remaining.iter().filter(|one| !one.cpus.is_disjoint(cpus));
    let interrupt = |one: &Remaining| Interrupt {
        irq: one.irq,
        name: one.name.clone(),
        cpus: one.cpus.intersection(cpus),
        reason: one.why,
        why: match one.text.as_str() {
            "" => words::why(one.why).to_owned(),
            text => format!("{}: {text}", words::why(one.why)),
        },
        cure: words::cure(one.why),
        count: one.count,
    };
    reaching.map(interrupt).collect()
}

fn threads_on(quiet: &Quiet, cpus: &CpuSet) -> Vec<Kthread> {
    let threads = quiet.report.threads_remaining.iter();
    let thread = |one: &Thread| Kthread {
        tid: one.id,
        name: one.name.clone(),
        cpus: one.cpus.intersection(cpus),
        why: one.text.clone(),
    };
    threads.filter(|one| !one.cpus.is_disjoint(cpus)).map(thread).collect()
}

impl Quietness {
    /// "2 device interrupts, 1 kernel thread"; each is counted once, on however many VMs' CPUs; empty where nothing is left. What
    /// the kernel keeps there and never ran is no disturbance: a queue for one CPU, a workqueue's rescuer.
    fn left(&self) -> String {
        let irqs = self.vms.iter().flat_map(|vm| &vm.interrupts_remaining);
        let irqs = irqs.filter(|one| one.reason != RemainingCause::Managed || one.count > 0);
        let irqs: BTreeSet<u32> = irqs.map(|one| one.irq).collect();
        let tids = self.vms.iter().flat_map(|vm| &vm.threads_remaining);
        let tids = tids.filter(|one| !one.name.starts_with(RESCUER)).map(|one| one.tid);
        let tids: BTreeSet<i32> = tids.collect();
        let problems = self.problems.len() + self.vms.iter().map(|vm| vm.problems.len()).sum::<usize>();
        let kinds = [
            (irqs.len(), "device interrupt"),
            (tids.len(), "kernel thread"),
            (problems, "problem"),
        ];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, what)| counted(count as u64, what)).collect();
        kinds.join(", ")
    }
}

impl Render for Quietness {
    fn text(&self, style: TextStyle) -> String {
        text::text(self, style)
    }

    fn failure(&self) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(format!("what is left is not known: {problem}"));
        }
        let left = self.left();
        (!left.is_empty()).then(|| format!("on CPUs of VMs are left: {left}"))
    }
}
