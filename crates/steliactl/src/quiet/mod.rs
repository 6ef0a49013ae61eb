//! `quiet`: which device interrupts and kernel threads were moved off the VMs' CPUs, which could not be, and what is left
//! there, with its cure.

mod text;
mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause, Thread};
use stelia_cpus::CpuSet;

use super::client::{Client, Failure};
use super::interrupts::{device_interrupts, table};
use super::node::Description;
use super::pod::Pod;
use super::threads::Roots;
use super::view::{Render, TextStyle, counted};

/// How the kernel calls a workqueue's last resort for want of memory.
const RESCUER: &str = "kworker/R-";

/// Between the two readings of `/proc/interrupts`.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What was done on the node, and what is left by VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Quietness {
    /// The setting `irq-steering`; empty: the daemon is older.
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
    let Some(table) = table(&roots.proc) else {
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
        exclusive_cpus: one.exclusive.clone(),
        device_interrupts_per_second: rate(uid.as_str()),
        interrupts_remaining: interrupts_on(quiet, &one.exclusive),
        threads_remaining: threads_on(quiet, &one.exclusive),
        problems: problems_of(quiet, uid.as_str()),
    });
    Quietness {
        steering: quiet.steering.clone(),
        problem: quiet.problem.clone(),
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
    /// Whether interrupts are kept off at all.
    fn steers(&self) -> bool {
        !matches!(self.steering.as_str(), "" | "off")
    }

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
        match (self.steering.as_str(), left.is_empty()) {
            ("", _) => Some("this daemon is older than irq-steering".to_owned()),
            (_, true) => None,
            (_, false) => Some(format!("on CPUs of VMs are left: {left}")),
        }
    }
}
