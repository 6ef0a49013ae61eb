//! `quiet`: which device interrupts and kernel threads were moved off the VMs' CPUs, which could not be, and what is left
//! there, with its cure.
//!
//! An interrupt is left on a VM's CPUs if the daemon reports it as a reason of degradation, or if it was seen there and the ledger has
//! device interrupts since the VM is isolated. What the kernel keeps there without firing is no disturbance.

mod text;
mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause, Thread};
use stelia_cpus::CpuSet;
use stelia_settings::Isolation;

use crate::explain_and_check::doctor::managed_irq_cpus;
use crate::check::ledger;
use crate::shared::daemon::{Client, Description, Failure, Pod, Selection, is_reported};
use crate::shared::kernel::Roots;
use crate::shared::kernel::interrupts::{device_interrupts, read_table};
use crate::shared::output::{Render, TextStyle, counted};

/// Prefix of the name of a workqueue's rescuer, a thread that runs only when memory is short.
const RESCUER: &str = "kworker/R-";

/// What is known before `steliad-quiet` has answered for the first time.
pub(crate) const NOT_REPORTED: &str = "steliad-quiet has not reported interrupts yet";

/// Between the two readings of `/proc/interrupts`.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What was done on the node, and what is left by VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Quietness {
    /// The setting `irq-steering`; empty where the daemon does not say.
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
    isolation: Isolation,
    exclusive_cpus: CpuSet,
    /// Device interrupts on its CPUs, within [`MEASURE_INTERVAL`]: 0 is the promise. `None` where they cannot be counted.
    device_interrupts_per_second: Option<u64>,
    /// The same since it is isolated, by the ledger: 0 is the promise. `None` where no ledger is kept, or it has not read them yet.
    device_interrupts_since_isolated: Option<u64>,
    interrupts_remaining: Vec<Interrupt>,
    threads_remaining: Vec<Kthread>,
    problems: Vec<String>,
    /// Whether `steliad-quiet` has reported: without its report what is left there is not known.
    #[serde(skip)]
    is_reported: bool,
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
    /// Whether it disturbs the VM.
    left: bool,
}

/// A kernel thread that may run on CPUs of the VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Kthread {
    tid: i32,
    name: String,
    cpus: CpuSet,
    why: String,
    /// A workqueue's rescuer is not: it runs only when memory is short.
    left: bool,
}

/// What is measured or read beside the daemon's description.
struct Measured<R, S> {
    /// Device interrupts a second on a pod's CPUs.
    rate: R,
    /// Device interrupts on a pod's CPUs since it is isolated.
    since_isolated: S,
    /// The CPUs of the boot parameter `isolcpus=managed_irq`.
    booted: CpuSet,
}

/// Device interrupts by pod since boot.
type Counts = BTreeMap<String, u64>;

/// What is left of the selected VMs.
///
/// # Errors
/// A pattern fits none, or the daemon does not answer.
pub(crate) async fn gather(client: &Client, roots: &Roots, selection: &Selection) -> Result<Quietness, Failure> {
    let described = client.describe().await?;
    let selected = selection.among(&described)?;
    let (began, before) = (Instant::now(), counts(&described, roots));
    tokio::time::sleep(MEASURE_INTERVAL).await;
    let now = counts(&described, roots);
    let seconds = began.elapsed().as_secs_f64();
    let by_ledger = by_ledger(client, &described).await;
    let cmdline = fs::read_to_string(roots.proc.join("cmdline")).unwrap_or_default();
    let rate = |uid: &str| {
        let grown = now.get(uid)?.checked_sub(*before.get(uid)?)?;
        // One interrupt must not be rounded away: 0 is a promise.
        Some((grown as f64 / seconds).ceil() as u64)
    };
    let measured = Measured {
        rate,
        since_isolated: |uid: &str| by_ledger.get(uid).copied(),
        booted: managed_irq_cpus(&cmdline),
    };
    Ok(quietness(&described, selected.as_ref(), &measured))
}

/// Device interrupts by pod since the first of them was isolated. The ledger has no times during which a pod was not.
async fn by_ledger(client: &Client, described: &Description) -> Counts {
    let since = described.node.instances.values().map(|one| one.isolated_us);
    let Some(since) = since.filter(|since| *since > 0).min() else {
        return Counts::new();
    };
    if !described.node.ledger.enabled {
        return Counts::new();
    }
    // A count that cannot be read is shown as unknown.
    let accounts = ledger::since(client, None, since).await.unwrap_or_default().into_iter();
    let read = accounts.filter(|account| account.covered_us > 0);
    read.map(|account| (account.pod.pod_uid, account.devices)).collect()
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

fn quietness<R, S>(described: &Description, selected: Option<&BTreeSet<String>>, measured: &Measured<R, S>) -> Quietness
where
    R: Fn(&str) -> Option<u64>,
    S: Fn(&str) -> Option<u64>,
{
    let quiet = &described.node.quiet;
    let report = &quiet.report;
    let problem = problem(described);
    let is_reported = problem.is_none() && quiet.answered_us > 0;
    let instances = described.node.instances.iter();
    // A VM without CPUs of its own has nothing to be kept quiet.
    let instances = instances.filter(|(uid, one)| {
        !one.exclusive.is_empty() && selected.is_none_or(|selected| selected.contains(uid.as_str()))
    });
    let vms = instances.map(|(uid, one)| {
        let since_isolated = (measured.since_isolated)(uid.as_str());
        Vm {
            pod: Pod::of(uid, one),
            isolation: one.isolation,
            exclusive_cpus: one.exclusive.clone(),
            device_interrupts_per_second: (measured.rate)(uid.as_str()),
            device_interrupts_since_isolated: since_isolated,
            interrupts_remaining: interrupts_on(described, &one.exclusive, since_isolated, &measured.booted),
            threads_remaining: threads_on(quiet, &one.exclusive),
            problems: problems_of(quiet, uid.as_str()),
            is_reported,
        }
    });
    Quietness {
        steering: quiet.steering.clone(),
        problem,
        answered_us: quiet.answered_us,
        interrupts: report.interrupts,
        moved: report.moved,
        irqbalance: report.irqbalance,
        threads_moved: report.threads_moved,
        vms: vms.collect(),
        problems: problems_of(quiet, ""),
    }
}

/// Why it is not known what is left. Without VMs that have CPUs, and with steering off, nothing is asked of `steliad-quiet`.
fn problem(described: &Description) -> Option<String> {
    let quiet = &described.node.quiet;
    let has_cpus = || described.node.instances.values().any(|one| !one.exclusive.is_empty());
    let is_silent = match quiet.steering.as_str() {
        "" => true,
        "off" => false,
        _ => quiet.answered_us == 0 && has_cpus(),
    };
    let silence = is_silent.then(|| NOT_REPORTED.to_owned());
    quiet.problem.clone().or(silence)
}

fn problems_of(quiet: &Quiet, pod: &str) -> Vec<String> {
    let problems = quiet.report.problems.iter().filter(|one| one.pod == pod);
    problems.map(|one| one.text.clone()).collect()
}

fn interrupts_on(
    described: &Description,
    cpus: &CpuSet,
    since_isolated: Option<u64>,
    booted: &CpuSet,
) -> Vec<Interrupt> {
    let remaining = described.node.quiet.report.remaining.iter();
    let reaching = remaining.filter(|one| !one.cpus.is_disjoint(cpus));
    let interrupt = |one: &Remaining| {
        let left = is_reported(described, one) || (one.count > 0 && since_isolated != Some(0));
        Interrupt {
            irq: one.irq,
            name: one.name.clone(),
            cpus: one.cpus.intersection(cpus),
            reason: one.why,
            why: match one.text.as_str() {
                "" => words::why(one.why).to_owned(),
                text => format!("{}: {text}", words::why(one.why)),
            },
            cure: words::cure(one.why, left, one.cpus.is_subset(booted)),
            count: one.count,
            left,
        }
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
        left: !one.name.starts_with(RESCUER),
    };
    threads.filter(|one| !one.cpus.is_disjoint(cpus)).map(thread).collect()
}

impl Quietness {
    /// The numbers of interrupts and of kernel threads, each once, on however many VMs' CPUs; those that are left, or the others.
    fn numbers(&self, left: bool) -> (BTreeSet<u32>, BTreeSet<i32>) {
        let irqs = |of: bool| -> BTreeSet<u32> {
            let all = self.vms.iter().flat_map(|vm| &vm.interrupts_remaining);
            all.filter(|one| one.left == of).map(|one| one.irq).collect()
        };
        let tids = self.vms.iter().flat_map(|vm| &vm.threads_remaining);
        let tids = tids.filter(|one| one.left == left).map(|one| one.tid).collect();
        if left {
            (irqs(true), tids)
        } else {
            (irqs(false).difference(&irqs(true)).copied().collect(), tids)
        }
    }

    /// "2 device interrupts, 1 kernel thread"; empty where nothing is left.
    fn left(&self) -> String {
        let (irqs, tids) = self.numbers(true);
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

impl Quietness {
    /// Whether the device interrupts on the CPUs of no VM could be counted, although they are to be kept off.
    fn is_uncounted(&self) -> bool {
        let is_counted = |vm: &Vm| {
            vm.device_interrupts_per_second
                .or(vm.device_interrupts_since_isolated)
                .is_some()
        };
        self.steering != "off" && !self.vms.is_empty() && !self.vms.iter().any(is_counted)
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
        match self.left() {
            left if !left.is_empty() => Some(format!("on CPUs of VMs are left: {left}")),
            _ if self.is_uncounted() => Some(
                "whether device interrupts fire on the CPUs of VMs is not known: they could not be counted".to_owned(),
            ),
            _ => None,
        }
    }
}
