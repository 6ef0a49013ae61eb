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
use stelia_api::quiet::{Irqbalance, Problem, Quiet, Remaining, RemainingCause, Thread};
use stelia_cpus::CpuSet;

use crate::check::doctor::managed_irq_cpus;
use crate::check::ledger;
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
    sources: Vec<Source>,
    /// What else could not be done; without a pod where it is of no VM in particular.
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
    /// How many sources disturb it; `None` where `steliad-quiet` has not reported.
    sources: Option<u64>,
}

/// A device interrupt that reaches CPUs of VMs, or a kernel thread that may run there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Source {
    kind: SourceKind,
    number: i64,
    name: String,
    /// Those that it disturbs, or that it reaches if it disturbs none.
    vms: Vec<Pod>,
    cpus: CpuSet,
    reason: &'static str,
    /// The kernel's words.
    error: String,
    /// How often an interrupt was seen there.
    count: u64,
    disturbs: bool,
    fix: &'static str,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum SourceKind {
    #[default]
    Interrupt,
    Thread,
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
    // A VM without CPUs of its own has none that could be disturbed.
    let instances = described.node.instances.iter();
    let instances = instances.filter(|(uid, one)| !one.exclusive.is_empty() && has(uid.as_str()));
    let instances: Vec<(Pod, &CpuSet)> = instances
        .map(|(uid, one)| (Pod::of(uid, one), &one.exclusive))
        .collect();
    let since_isolated = |pod: &Pod| measured.since_isolated.get(&pod.pod_uid).copied();
    let reach = |cpus: &CpuSet, disturbs: &dyn Fn(&Pod) -> bool| {
        let reached = instances.iter().filter(|(_, own)| !own.is_disjoint(cpus));
        let (disturbed, others): (Vec<_>, Vec<_>) = reached.partition(|(pod, _)| disturbs(pod));
        let disturbs = !disturbed.is_empty();
        let vms = if disturbs { disturbed } else { others };
        let own = vms.iter().fold(CpuSet::new(), |all, (_, own)| all.union(own));
        Source {
            vms: vms.into_iter().map(|(pod, _)| pod.clone()).collect(),
            cpus: own.intersection(cpus),
            disturbs,
            ..Source::default()
        }
    };
    let interrupt = |one: &Remaining| {
        let fires = |pod: &Pod| one.count > 0 && since_isolated(pod) != Some(0);
        Source {
            number: one.irq.into(),
            name: one.name.clone(),
            reason: one.why.name(),
            error: one.text.clone(),
            count: one.count,
            fix: fix(one.why, one.cpus.is_subset(&measured.booted)),
            ..reach(&one.cpus, &|pod| is_reported(described, one) || fires(pod))
        }
    };
    let thread = |one: &Thread| Source {
        kind: SourceKind::Thread,
        number: one.id.into(),
        name: one.name.clone(),
        reason: "bound",
        error: one.text.clone(),
        fix: "look for a setting of its driver's or subsystem's (/usr/share/doc/steliad/quiet-cpus.md)",
        ..reach(&one.cpus, &|_| !one.name.starts_with(RESCUER))
    };
    let threads = report.threads_remaining.iter().map(thread);
    let mut sources: Vec<Source> = report.remaining.iter().map(interrupt).chain(threads).collect();
    sources.retain(|one| !one.vms.is_empty());
    sources.sort_by_key(|one| Reverse(one.count));
    let vms = instances.iter().map(|(pod, cpus)| {
        let disturbing = sources.iter().filter(|one| one.disturbs && one.vms.contains(pod));
        let disturbing = disturbing.count() as u64;
        Vm {
            pod: pod.clone(),
            exclusive_cpus: (*cpus).clone(),
            interrupts_per_second: measured.per_second.get(&pod.pod_uid).copied(),
            interrupts_since_isolated: since_isolated(pod),
            sources: (is_known || disturbing > 0).then_some(disturbing),
        }
    });
    let mut vms: Vec<Vm> = vms.collect();
    vms.sort_by_cached_key(|vm| {
        let counted = (vm.interrupts_per_second, vm.interrupts_since_isolated, vm.sources);
        (Reverse(counted), vm.pod.to_string())
    });
    let problems = report.problems.iter().filter(|one| one.pod.is_empty() || has(&one.pod));
    Noise {
        steering: quiet.steering.clone(),
        problem,
        answered_us: quiet.answered_us,
        interrupts_total: report.interrupts,
        interrupts_moved: report.moved,
        irqbalance: report.irqbalance,
        threads_moved: report.threads_moved,
        problems: problems.cloned().collect(),
        sources,
        vms,
    }
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

/// What the name of a reason means.
fn meaning_of(reason: &str) -> &'static str {
    match RemainingCause::parse(reason) {
        Some(RemainingCause::Managed) => "the kernel places the interrupt itself",
        Some(RemainingCause::NoVector) => "no other CPU has a free interrupt vector",
        Some(RemainingCause::Refused) => "the interrupt's mask cannot be written",
        Some(RemainingCause::StillFires) => "the interrupt's mask is right, but it still fires there",
        Some(RemainingCause::Overwritten) => "another program writes the interrupt's mask again and again",
        None => "the thread's CPUs cannot be set",
    }
}

/// `booted`: the kernel was booted with `isolcpus=managed_irq` for its CPUs.
const fn fix(remains: RemainingCause, booted: bool) -> &'static str {
    match remains {
        RemainingCause::Managed if booted => "use fewer queues of the device: its queue has no other CPUs",
        RemainingCause::Managed => "boot with isolcpus=managed_irq, and all CPUs that VMs may get",
        RemainingCause::NoVector => "reserve more shared CPUs, or use fewer queues of the devices (ethtool -L)",
        RemainingCause::Refused => "see the kernel's error and /usr/share/doc/steliad/quiet-cpus.md",
        RemainingCause::StillFires => "look for the driver's own queue affinity",
        RemainingCause::Overwritten => "find the program (irqbalance, tuned, a vendor's affinity script) and stop it",
    }
}

const VMS: [Column<Vm>; 5] = [
    column("VM", |vm: &Vm| vm.pod.to_string()).yields(2).shortens(),
    column("CPUS", |vm: &Vm| vm.exclusive_cpus.to_string()).yields(1),
    column("IRQ/S", |vm: &Vm| number(vm.interrupts_per_second))
        .right()
        .means(|vm| meaning(vm.interrupts_per_second)),
    column("SINCE ISOLATED", |vm: &Vm| number(vm.interrupts_since_isolated))
        .right()
        .means(|vm| meaning(vm.interrupts_since_isolated)),
    column("SOURCES", |vm: &Vm| number(vm.sources))
        .right()
        .means(|vm| meaning(vm.sources)),
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

const SOURCES: [Column<Source>; 6] = [
    column("SOURCE", |one: &Source| match one.kind {
        SourceKind::Interrupt => format!("irq {}", one.number),
        SourceKind::Thread => format!("thread {}", one.number),
    }),
    column("NAME", |one: &Source| one.name.clone()).yields(1).shortens(),
    column("VM", |one: &Source| whose(&one.vms.iter().collect::<Vec<_>>()))
        .yields(2)
        .shortens(),
    column("CPUS", |one: &Source| one.cpus.to_string()).yields(1),
    column("SEEN", |one: &Source| {
        number((one.kind == SourceKind::Interrupt).then_some(one.count))
    })
    .right(),
    column("REASON", |one: &Source| {
        if one.disturbs { one.reason } else { "harmless" }.to_owned()
    }),
];

impl Noise {
    fn disturbing(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|one| one.disturbs)
    }

    /// "2 device interrupts, 1 kernel thread"; empty where nothing disturbs VMs.
    fn left(&self) -> String {
        let of = |kind| self.disturbing().filter(|one| one.kind == kind).count();
        let kinds = [
            (of(SourceKind::Interrupt), "device interrupt"),
            (of(SourceKind::Thread), "kernel thread"),
            (self.problems.len(), "problem"),
        ];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, what)| counted(count as u64, what)).collect();
        kinds.join(", ")
    }

    /// Whether the device interrupts on the CPUs of no VM could be counted, although they are to be kept off.
    fn is_uncounted(&self) -> bool {
        let is_counted = |vm: &Vm| vm.interrupts_per_second.or(vm.interrupts_since_isolated).is_some();
        self.steering != "off" && !self.vms.is_empty() && !self.vms.iter().any(is_counted)
    }

    /// What disturbs VMs by its reason, each once with its fix.
    fn findings(&self) -> BTreeSet<(&str, String, &str)> {
        let sources = self.disturbing().map(|one| {
            let meaning = meaning_of(one.reason);
            // What the kernel says of a mask that it does not take is the same of each.
            let is_plain = one.error.is_empty() || one.reason == RemainingCause::Managed.name();
            let fact = if is_plain {
                meaning.to_owned()
            } else {
                format!("{meaning}: {}", one.error)
            };
            (one.reason, fact, one.fix)
        });
        let problems = self.problems.iter().map(|one| {
            let is_refused = one.text.contains("Permission denied");
            let fix = if is_refused {
                "run steliad-quiet as root: systemctl cat steliad-quiet"
            } else {
                ""
            };
            let vm = self.vms.iter().find(|vm| vm.pod.pod_uid == one.pod);
            match vm {
                None => ("node", one.text.clone(), fix),
                Some(vm) => ("vm", format!("{}: {}", vm.pod, one.text), fix),
            }
        });
        sources.chain(problems).collect()
    }

    /// What was done on the node, and whether anything disturbs VMs.
    fn summary(&self, style: TextStyle) -> String {
        let left = self.left();
        let is_off = self.steering == "off";
        let is_silent = self.interrupts_total == 0 && !is_off && !self.vms.is_empty() && left.is_empty();
        if let Some(problem) = self.problem.as_deref().or(is_silent.then_some(NOT_REPORTED)) {
            return format!("{problem}.");
        }
        let interrupts = counted(self.interrupts_total.into(), "device interrupt");
        let threads = counted(self.threads_moved, "kernel thread");
        let irqbalance = match self.irqbalance {
            Irqbalance::Absent => "",
            Irqbalance::Informed => "; irqbalance has the list of the VMs' CPUs",
            Irqbalance::NotInformed => "; irqbalance could not be sent the list of the VMs' CPUs",
        };
        let mut text = if is_off {
            "irq-steering is off: no interrupt is moved.".to_owned()
        } else {
            format!(
                "{} of {interrupts} and {threads} moved{irqbalance}.",
                self.interrupts_moved
            )
        };
        match self.failure() {
            None if is_off => {}
            None => text += " Nothing disturbs VMs' CPUs.",
            Some(_) if !left.is_empty() => text += &format!(" On VMs' CPUs: {left}."),
            Some(failure) => text += &format!(" {failure}."),
        }
        match self.sources.len() - self.disturbing().count() {
            harmless if harmless > 0 && !style.wide => format!("{text} {harmless} harmless (-o wide)."),
            _ => text,
        }
    }
}

impl Render for Noise {
    fn text(&self, style: TextStyle) -> String {
        let mut parts = vec![match self.vms.as_slice() {
            [] => "No VM has CPUs of its own.\n".to_owned(),
            vms => table(&VMS, vms, style),
        }];
        let sources: Vec<&Source> = self.sources.iter().filter(|one| one.disturbs || style.wide).collect();
        if !sources.is_empty() {
            parts.push(table(&SOURCES, sources, style));
        }
        let findings = self.findings();
        let width = findings.iter().map(|(reason, ..)| columns(reason)).max().unwrap_or(0);
        let findings = findings.iter().map(|(reason, fact, fix)| {
            finding(("FAIL", Meaning::Broken), &format!("{reason:width$}"), fact, fix, style)
        });
        parts.push(findings.collect());
        if style.legend {
            parts.push(paragraph(&printable(&self.summary(style)), style));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        match (&self.problem, self.left()) {
            (Some(problem), _) => Some(problem.clone()),
            (None, left) if !left.is_empty() => Some(format!("on VMs' CPUs: {left}")),
            _ if self.is_uncounted() => Some("device interrupts on VMs' CPUs could not be counted".to_owned()),
            _ => None,
        }
    }
}
