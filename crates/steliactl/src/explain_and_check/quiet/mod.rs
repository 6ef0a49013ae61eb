//! `noise`: the device interrupts and kernel threads that disturb VMs' CPUs, each with the reason and a fix.
//!
//! An interrupt disturbs a VM if the daemon reports it as a reason of degradation, or if it was seen on the VM's CPUs and the ledger has
//! device interrupts since the VM is isolated. What the kernel keeps there without firing disturbs nobody.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;
use stelia_api::quiet::{Irqbalance, Quiet, Remaining, RemainingCause, Thread};
use stelia_cpus::CpuSet;

use crate::explain_and_check::doctor::managed_irq_cpus;
use crate::explain_and_check::ledger;
use crate::shared::daemon::{Client, Description, Failure, Pod, Selection, is_reported, whose};
use crate::shared::kernel::Roots;
use crate::shared::kernel::interrupts::{device_interrupts, read_table};
use crate::shared::output::blocks::finding;
use crate::shared::output::{
    Column, Meaning, Render, TextStyle, column, columns, counted, paragraph, printable, table,
};

/// Prefix of the name of a workqueue's rescuer, a thread that runs only when memory is short.
const RESCUER: &str = "kworker/R-";

/// What is known before `steliad-quiet` has answered for the first time.
pub(crate) const NOT_REPORTED: &str = "No interrupt data yet from steliad-quiet";

/// Between the two readings of `/proc/interrupts`.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What was done on the node, and what disturbs the VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Noise {
    /// The setting `irq-steering`; empty where the daemon does not say.
    steering: String,
    /// Why nothing else is known.
    problem: Option<String>,
    answered_us: u64,
    /// Device interrupts that the kernel has.
    interrupts_total: u32,
    /// Those whose mask was changed.
    interrupts_moved: u32,
    irqbalance: Irqbalance,
    /// Kernel threads that were given the shared CPUs.
    threads_moved: u64,
    /// Those that are disturbed most first.
    vms: Vec<Vm>,
    interrupts: Vec<Interrupt>,
    threads: Vec<Kthread>,
    /// What else could not be done, by the VM; that of no VM in particular has no UID.
    problems: Vec<Problem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Vm {
    #[serde(flatten)]
    pod: Pod,
    exclusive_cpus: CpuSet,
    /// Device interrupts on its CPUs, within [`MEASURE_INTERVAL`]. `None` where they cannot be counted.
    interrupts_per_second: Option<u64>,
    /// The same since it is isolated. `None` where no ledger is kept, or it has not read them yet.
    interrupts_since_isolated: Option<u64>,
    /// How many interrupts disturb it, and how many kernel threads; `None` where `steliad-quiet` has not reported.
    disturbing_interrupts: Option<u64>,
    disturbing_threads: Option<u64>,
}

/// A device interrupt that reaches CPUs of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Interrupt {
    irq: u32,
    name: String,
    vms: Vec<Pod>,
    cpus: CpuSet,
    reason: RemainingCause,
    /// The kernel's words.
    error: String,
    /// How often it was seen there.
    count: u64,
    disturbs: bool,
    fix: &'static str,
}

/// A kernel thread that may run on CPUs of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Kthread {
    tid: i32,
    name: String,
    vms: Vec<Pod>,
    cpus: CpuSet,
    error: String,
    /// A workqueue's rescuer does not.
    disturbs: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Problem {
    #[serde(flatten)]
    pod: Pod,
    text: String,
}

/// Device interrupts by pod.
type Counts = BTreeMap<String, u64>;

/// What is measured or read beside the daemon's description.
#[derive(Default)]
struct Measured {
    per_second: Counts,
    since_isolated: Counts,
    /// The CPUs of the boot parameter `isolcpus=managed_irq`.
    booted: CpuSet,
}

/// What disturbs the selected VMs.
///
/// # Errors
/// A pattern fits none, or the daemon does not answer.
pub(crate) async fn gather(client: &Client, roots: &Roots, selection: &Selection) -> Result<Noise, Failure> {
    let described = client.describe().await?;
    let selected = selection.among(&described)?;
    let (began, before) = (Instant::now(), counts(&described, roots));
    tokio::time::sleep(MEASURE_INTERVAL).await;
    let (now, seconds) = (counts(&described, roots), began.elapsed().as_secs_f64());
    let rate = |(uid, now): (String, u64)| {
        let grown = now.checked_sub(*before.get(&uid)?)?;
        // One interrupt must not be rounded away.
        Some((uid, (grown as f64 / seconds).ceil() as u64))
    };
    let cmdline = fs::read_to_string(roots.proc.join("cmdline")).unwrap_or_default();
    let measured = Measured {
        per_second: now.into_iter().filter_map(rate).collect(),
        since_isolated: by_ledger(client, &described).await,
        booted: managed_irq_cpus(&cmdline),
    };
    Ok(noise(&described, selected.as_ref(), &measured))
}

/// Device interrupts by pod since the first of them was isolated. The ledger has no times during which a pod was not. A count that cannot be read
/// is unknown.
async fn by_ledger(client: &Client, described: &Description) -> Counts {
    let since = described.node.instances.values().map(|one| one.isolated_us);
    let since = since.filter(|since| *since > 0 && described.node.ledger.enabled).min();
    let Some(since) = since else {
        return Counts::new();
    };
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

fn noise(described: &Description, selected: Option<&BTreeSet<String>>, measured: &Measured) -> Noise {
    let quiet = &*described.node.quiet;
    let report = &quiet.report;
    let has = |uid: &str| selected.is_none_or(|selected| selected.contains(uid));
    let problem = problem(described);
    let is_known = problem.is_none() && quiet.answered_us > 0;
    let since_isolated = |uid: &str| measured.since_isolated.get(uid).copied();
    let disturbs =
        |one: &Remaining, uid: &str| is_reported(described, one) || (one.count > 0 && since_isolated(uid) != Some(0));
    // A VM without CPUs of its own has none that could be disturbed.
    let instances = described.node.instances.iter();
    let instances = instances.filter(|(uid, one)| !one.exclusive.is_empty() && has(uid.as_str()));
    let instances: Vec<_> = instances
        .map(|(uid, one)| (Pod::of(uid, one), &one.exclusive))
        .collect();
    let reached = |cpus: &CpuSet| -> (Vec<Pod>, CpuSet) {
        let reached = instances.iter().filter(|(_, own)| !own.is_disjoint(cpus));
        let (pods, sets): (Vec<Pod>, Vec<&CpuSet>) = reached.cloned().unzip();
        let own = sets.into_iter().fold(CpuSet::new(), |all, own| all.union(own));
        (pods, own.intersection(cpus))
    };
    let interrupts = report.remaining.iter().map(|one| {
        let (vms, cpus) = reached(&one.cpus);
        let disturbs = vms.iter().any(|pod| disturbs(one, &pod.pod_uid));
        Interrupt {
            irq: one.irq,
            name: one.name.clone(),
            vms,
            cpus,
            reason: one.why,
            error: one.text.clone(),
            count: one.count,
            disturbs,
            fix: fix_of_interrupt(one.why, one.cpus.is_subset(&measured.booted)),
        }
    });
    let mut interrupts: Vec<Interrupt> = interrupts.filter(|one| !one.vms.is_empty()).collect();
    interrupts.sort_by_key(|one| Reverse(one.count));
    let threads = report.threads_remaining.iter().map(|one| {
        let (vms, cpus) = reached(&one.cpus);
        Kthread {
            tid: one.id,
            name: one.name.clone(),
            vms,
            cpus,
            error: one.text.clone(),
            disturbs: is_disturbing(one),
        }
    });
    let vms = instances.iter().map(|(pod, cpus)| {
        let reaching = report.remaining.iter().filter(|one| !one.cpus.is_disjoint(cpus));
        let interrupts = reaching.filter(|one| disturbs(one, &pod.pod_uid)).count() as u64;
        let threads = report.threads_remaining.iter().filter(|one| is_disturbing(one));
        let threads = threads.filter(|one| !one.cpus.is_disjoint(cpus)).count() as u64;
        Vm {
            pod: pod.clone(),
            exclusive_cpus: (*cpus).clone(),
            interrupts_per_second: measured.per_second.get(&pod.pod_uid).copied(),
            interrupts_since_isolated: since_isolated(&pod.pod_uid),
            disturbing_interrupts: (is_known || interrupts > 0).then_some(interrupts),
            disturbing_threads: (is_known || threads > 0).then_some(threads),
        }
    });
    let mut vms: Vec<Vm> = vms.collect();
    vms.sort_by_cached_key(|vm| {
        let counted = (vm.interrupts_per_second, vm.interrupts_since_isolated);
        let reached = (vm.disturbing_interrupts, vm.disturbing_threads);
        (Reverse(counted), Reverse(reached), vm.pod.to_string())
    });
    let problems = report.problems.iter().filter(|one| one.pod.is_empty() || has(&one.pod));
    let problems = problems.map(|one| {
        let pod = instances.iter().find(|(pod, _)| pod.pod_uid == one.pod);
        Problem {
            pod: pod.map_or_else(|| Pod::unnamed(&one.pod), |(pod, _)| pod.clone()),
            text: one.text.clone(),
        }
    });
    Noise {
        steering: quiet.steering.clone(),
        problem,
        answered_us: quiet.answered_us,
        interrupts_total: report.interrupts,
        interrupts_moved: report.moved,
        irqbalance: report.irqbalance,
        threads_moved: report.threads_moved,
        threads: threads.filter(|one| !one.vms.is_empty()).collect(),
        problems: problems.collect(),
        interrupts,
        vms,
    }
}

fn is_disturbing(thread: &Thread) -> bool {
    !thread.name.starts_with(RESCUER)
}

/// Why nothing is known. Without VMs that have CPUs, and with steering off, nothing is asked of `steliad-quiet`.
fn problem(described: &Description) -> Option<String> {
    let quiet: &Quiet = &described.node.quiet;
    let has_cpus = || described.node.instances.values().any(|one| !one.exclusive.is_empty());
    let is_silent = match quiet.steering.as_str() {
        "" => true,
        "off" => false,
        _ => quiet.answered_us == 0 && has_cpus(),
    };
    quiet.problem.clone().or(is_silent.then(|| NOT_REPORTED.to_owned()))
}

const fn why(remains: RemainingCause) -> &'static str {
    match remains {
        RemainingCause::Managed => "the kernel places the interrupt itself",
        RemainingCause::NoVector => "no other CPU has a free interrupt vector",
        RemainingCause::Refused => "the interrupt's mask cannot be written",
        RemainingCause::StillFires => "the interrupt's mask is right, but it still fires there",
        RemainingCause::Overwritten => "another program writes the interrupt's mask again and again",
    }
}

/// `booted`: the kernel was booted with `isolcpus=managed_irq` for its CPUs.
const fn fix_of_interrupt(remains: RemainingCause, booted: bool) -> &'static str {
    match remains {
        RemainingCause::Managed if booted => "use fewer queues of the device: its queue has no other CPUs",
        RemainingCause::Managed => "boot with isolcpus=managed_irq and the CPUs that steliactl doctor names",
        RemainingCause::NoVector => "reserve more shared CPUs, or use fewer queues of the devices (ethtool -L)",
        RemainingCause::Refused => "see the kernel's error and /usr/share/doc/steliad/quiet-cpus.md",
        RemainingCause::StillFires => "look for the driver's own queue affinity",
        RemainingCause::Overwritten => "find the program (irqbalance, tuned, a vendor's affinity script) and stop it",
    }
}

const VMS: [Column<Vm>; 6] = [
    column("VM", |vm: &Vm| vm.pod.to_string()).yields(2).shortens(),
    column("CPUS", |vm: &Vm| vm.exclusive_cpus.to_string()).yields(1),
    column("IRQ/S", |vm: &Vm| number(vm.interrupts_per_second))
        .right()
        .means(|vm| meaning(vm.interrupts_per_second)),
    column("SINCE ISOLATED", |vm: &Vm| number(vm.interrupts_since_isolated))
        .right()
        .means(|vm| meaning(vm.interrupts_since_isolated)),
    column("IRQS", |vm: &Vm| number(vm.disturbing_interrupts))
        .right()
        .means(|vm| meaning(vm.disturbing_interrupts)),
    column("THREADS", |vm: &Vm| number(vm.disturbing_threads))
        .right()
        .means(|vm| meaning(vm.disturbing_threads)),
];

fn number(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

const fn meaning(number: Option<u64>) -> Meaning {
    match number {
        Some(0) => Meaning::Good,
        _ => Meaning::Attention,
    }
}

const INTERRUPTS: [Column<Interrupt>; 6] = [
    column("IRQ", |one: &Interrupt| one.irq.to_string()).right(),
    column("NAME", |one: &Interrupt| one.name.clone()).yields(2).shortens(),
    column("VM", |one: &Interrupt| whose(&one.vms.iter().collect::<Vec<_>>()))
        .yields(3)
        .shortens(),
    column("CPUS", |one: &Interrupt| one.cpus.to_string()).yields(1),
    column("SEEN", |one: &Interrupt| one.count.to_string()).right(),
    column("REASON", |one: &Interrupt| match one.disturbs {
        true => one.reason.name().to_owned(),
        false => "harmless".to_owned(),
    }),
];
const THREADS: [Column<Kthread>; 5] = [
    column("TID", |one: &Kthread| one.tid.to_string()).right(),
    column("THREAD", |one: &Kthread| one.name.clone()).yields(2),
    column("VM", |one: &Kthread| whose(&one.vms.iter().collect::<Vec<_>>()))
        .yields(3)
        .shortens(),
    column("CPUS", |one: &Kthread| one.cpus.to_string()).yields(1),
    column("REASON", |one: &Kthread| match one.disturbs {
        true => "bound".to_owned(),
        false => "harmless".to_owned(),
    }),
];

impl Noise {
    /// The device interrupts, kernel threads and problems that disturb VMs.
    fn counts(&self) -> [(usize, &'static str); 3] {
        let interrupts = self.interrupts.iter().filter(|one| one.disturbs).count();
        let threads = self.threads.iter().filter(|one| one.disturbs).count();
        [
            (interrupts, "device interrupt"),
            (threads, "kernel thread"),
            (self.problems.len(), "problem"),
        ]
    }

    /// "2 device interrupts, 1 kernel thread"; empty where nothing disturbs VMs.
    fn disturbing(&self) -> String {
        let kinds = self.counts().into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, what)| counted(count as u64, what)).collect();
        kinds.join(", ")
    }

    /// Whether the device interrupts on the CPUs of no VM could be counted, although they are to be kept off.
    fn is_uncounted(&self) -> bool {
        let is_counted = |vm: &Vm| vm.interrupts_per_second.or(vm.interrupts_since_isolated).is_some();
        self.steering != "off" && !self.vms.is_empty() && !self.vms.iter().any(is_counted)
    }

    /// What disturbs VMs by its reason, each once with its fix.
    fn findings(&self) -> BTreeSet<(String, String, &'static str)> {
        let interrupts = self.interrupts.iter().filter(|one| one.disturbs).map(|one| {
            let why = match (one.reason, one.error.as_str()) {
                // What the kernel says of a mask that it does not take is the same of each.
                (RemainingCause::Managed, _) | (_, "") => why(one.reason).to_owned(),
                (reason, error) => format!("{}: {error}", why(reason)),
            };
            (one.reason.name().to_owned(), why, one.fix)
        });
        let threads = self.threads.iter().filter(|one| one.disturbs).map(|one| {
            let why = match one.error.as_str() {
                "" => "the thread's CPUs cannot be set".to_owned(),
                error => format!("the thread's CPUs cannot be set: {error}"),
            };
            let fix = "look for a setting of its driver's or subsystem's (/usr/share/doc/steliad/quiet-cpus.md)";
            ("bound".to_owned(), why, fix)
        });
        let problems = self.problems.iter().map(|one| {
            let is_refused = one.text.contains("Permission denied");
            let fix = if is_refused {
                "run steliad-quiet as root: systemctl cat steliad-quiet"
            } else {
                ""
            };
            match one.pod.pod_uid.as_str() {
                "" => ("node".to_owned(), one.text.clone(), fix),
                _ => ("vm".to_owned(), format!("{}: {}", one.pod, one.text), fix),
            }
        });
        interrupts.chain(threads).chain(problems).collect()
    }

    /// What was done on the node, and whether anything disturbs VMs.
    fn summary(&self, style: TextStyle) -> String {
        let is_silent = self.interrupts_total == 0 && self.steering != "off" && !self.vms.is_empty();
        match &self.problem {
            Some(problem) => return format!("{problem}."),
            None if is_silent && self.disturbing().is_empty() => return format!("{NOT_REPORTED}."),
            None => {}
        }
        let done = match self.steering.as_str() {
            "off" => "irq-steering is off: no interrupt is moved.".to_owned(),
            _ => {
                let interrupts = counted(self.interrupts_total.into(), "device interrupt");
                let threads = counted(self.threads_moved, "kernel thread");
                let irqbalance = match self.irqbalance {
                    Irqbalance::Absent => "",
                    Irqbalance::Informed => "; irqbalance has the list of the VMs' CPUs",
                    Irqbalance::NotInformed => "; irqbalance could not be sent the list of the VMs' CPUs",
                };
                format!(
                    "{} of {interrupts} and {threads} moved{irqbalance}.",
                    self.interrupts_moved
                )
            }
        };
        let left = match (self.disturbing(), self.failure()) {
            (left, _) if !left.is_empty() => format!(" On VMs' CPUs: {left}."),
            (_, Some(failure)) => format!(" {failure}."),
            (_, None) if self.steering == "off" => String::new(),
            (_, None) => " Nothing disturbs VMs' CPUs.".to_owned(),
        };
        let harmless = self.interrupts.len() + self.threads.len();
        let counts = self.counts();
        let hidden = match harmless - counts[0].0 - counts[1].0 {
            hidden if hidden == 0 || style.wide => String::new(),
            hidden => format!(" {hidden} harmless (-o wide)."),
        };
        done + &left + &hidden
    }
}

impl Render for Noise {
    fn text(&self, style: TextStyle) -> String {
        let mut parts = vec![if self.vms.is_empty() {
            "No VM has CPUs of its own.\n".to_owned()
        } else {
            table(&VMS, &self.vms, style)
        }];
        let interrupts = self.interrupts.iter().filter(|one| one.disturbs || style.wide);
        let interrupts: Vec<&Interrupt> = interrupts.collect();
        if !interrupts.is_empty() {
            parts.push(table(&INTERRUPTS, interrupts, style));
        }
        let threads = self.threads.iter().filter(|one| one.disturbs || style.wide);
        let threads: Vec<&Kthread> = threads.collect();
        if !threads.is_empty() {
            parts.push(table(&THREADS, threads, style));
        }
        let findings = self.findings();
        let width = findings.iter().map(|(subject, ..)| columns(subject)).max().unwrap_or(0);
        let findings = findings.iter().map(|(subject, fact, fix)| {
            let subject = format!("{subject:width$}");
            finding(("FAIL", Meaning::Broken), &subject, fact, fix, style)
        });
        parts.push(findings.collect());
        parts.retain(|part| !part.is_empty());
        if style.legend {
            parts.push(paragraph(&printable(&self.summary(style)), style));
        }
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        if self.problem.is_some() {
            return self.problem.clone();
        }
        match self.disturbing() {
            left if !left.is_empty() => Some(format!("on VMs' CPUs: {left}")),
            _ if self.is_uncounted() => Some("device interrupts on VMs' CPUs could not be counted".to_owned()),
            _ => None,
        }
    }
}
