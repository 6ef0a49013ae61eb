//! `noise`: the device interrupts and kernel threads that disturb VMs' CPUs, each with the reason and a fix.
//!
//! An interrupt disturbs a VM if the daemon reports it as a reason of degradation, or if it was seen on the VM's CPUs and the ledger has
//! device interrupts there. What the kernel keeps there without firing disturbs nobody.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stelia_api::quiet::{Problem, Quiet, RemainingCause};
use stelia_cpus::CpuSet;

use super::measured;
use crate::shared::daemon::{Client, Description, Failure, Pod, Selection, is_reported, whose};
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::InstanceRates;
use crate::shared::output::{Column, Meaning, Render, TextStyle, column, counted, paragraph, stacked, table};

/// Prefix of the name of a workqueue's rescuer, a thread that runs only when memory is short.
const RESCUER: &str = "kworker/R-";

/// What is known before `steliad-quiet` has answered for the first time.
pub(crate) const NOT_REPORTED: &str = "No interrupt data yet from steliad-quiet";

/// How long device interrupts are counted.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What disturbs the VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Noise {
    /// Why the sources are not known.
    problem: Option<String>,
    /// Those that are disturbed most first.
    vms: Vec<Vm>,
    sources: Vec<Source>,
    /// What else could not be done; without a pod where it is of no VM in particular.
    problems: Vec<Problem>,
    /// What was done on the node.
    #[serde(skip)]
    quiet: Arc<Quiet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Vm {
    #[serde(flatten)]
    pod: Pod,
    exclusive_cpus: CpuSet,
    /// Device interrupts on its CPUs, within [`MEASURE_INTERVAL`]. `None` where they cannot be counted.
    interrupts_per_second: Option<u64>,
    /// The same since steliad started. `None` where no ledger is kept, or it has not read them yet.
    interrupts_by_ledger: Option<u64>,
}

/// A device interrupt that reaches CPUs of VMs, or a kernel thread that may run there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Source {
    /// `irq` and its number, or `thread` and its ID.
    source: String,
    name: String,
    /// Those that it reaches.
    vms: Vec<Pod>,
    cpus: CpuSet,
    reason: &'static str,
    text: String,
    fix: &'static str,
    /// How often an interrupt was seen there.
    count: Option<u64>,
    disturbs: bool,
}

/// Device interrupts by pod.
type Counts = BTreeMap<String, u64>;

/// What disturbs the selected VMs.
///
/// # Errors
/// A pattern fits none, or the daemon does not answer.
pub(crate) async fn gather(client: &Client, roots: &Roots, selection: &Selection) -> Result<Noise, Failure> {
    let (described, selected) = client.select(selection).await?;
    let sampled = measured(&described, roots, MEASURE_INTERVAL).await;
    // One interrupt must not be rounded away.
    let rate = |one: InstanceRates| Some((one.pod.pod_uid, one.device_interrupts_per_second?.ceil() as u64));
    let per_second = sampled.instances.into_iter().filter_map(rate).collect();
    Ok(noise(&described, selected.as_ref(), &per_second))
}

fn noise(described: &Description, selected: Option<&BTreeSet<String>>, per_second: &Counts) -> Noise {
    let (quiet, ledger) = (&described.node.quiet, &described.node.ledger);
    let has = |uid: &str| selected.is_none_or(|selected| selected.contains(uid));
    // A VM without CPUs of its own has none that could be disturbed.
    let instances = described.node.instances.iter();
    let instances = instances.filter(|(uid, one)| !one.exclusive.is_empty() && has(uid.as_str()));
    let vms = instances.map(|(uid, one)| Vm {
        pod: Pod::of(uid, one),
        exclusive_cpus: one.exclusive.clone(),
        interrupts_per_second: per_second.get(uid.as_str()).copied(),
        interrupts_by_ledger: (ledger.vms.get(uid.as_str()).filter(|one| one.covered_us > 0)).map(|one| one.devices),
    });
    let mut vms: Vec<Vm> = vms.collect();
    vms.sort_by_cached_key(|vm| {
        let counted = (vm.interrupts_per_second, vm.interrupts_by_ledger);
        (Reverse(counted), vm.pod.to_string())
    });
    let reached = |cpus: &CpuSet| -> (Vec<Pod>, CpuSet, bool) {
        let (mut pods, mut own, mut may_fire) = (Vec::new(), CpuSet::new(), false);
        for vm in vms.iter().filter(|vm| !vm.exclusive_cpus.is_disjoint(cpus)) {
            pods.push(vm.pod.clone());
            own.union_with(&vm.exclusive_cpus.intersection(cpus));
            may_fire |= vm.interrupts_by_ledger != Some(0);
        }
        (pods, own, may_fire)
    };
    let interrupts = quiet.report.remaining.iter().map(|one| {
        let (vms, cpus, may_fire) = reached(&one.cpus);
        // What the kernel says of a mask that it does not take is the same of each.
        let is_plain = one.text.is_empty() || one.why == RemainingCause::Managed;
        let error = if is_plain { "" } else { &format!(": {}", one.text) };
        Source {
            source: format!("irq {}", one.irq),
            name: one.name.clone(),
            vms,
            cpus,
            reason: one.why.name(),
            text: format!("{}{error}", one.why.text()),
            fix: one.why.fix(),
            count: Some(one.count),
            disturbs: one.count > 0 && may_fire || is_reported(described, one),
        }
    });
    let threads = quiet.report.threads_remaining.iter().map(|one| {
        let (vms, cpus, _) = reached(&one.cpus);
        Source {
            source: format!("thread {}", one.id),
            name: one.name.clone(),
            vms,
            cpus,
            reason: "bound",
            text: format!("the thread's CPUs cannot be set: {}", one.text),
            fix: "look for a setting of its driver's or subsystem's (/usr/share/doc/steliad/quiet-cpus.md)",
            count: None,
            disturbs: !one.name.starts_with(RESCUER),
        }
    });
    let mut sources: Vec<Source> = interrupts.chain(threads).filter(|one| !one.vms.is_empty()).collect();
    sources.sort_by_key(|one| Reverse((one.disturbs, one.count)));
    let is_unanswered = quiet.steering.is_empty() || quiet.answered_us == 0 || quiet.report.interrupts == 0;
    // Without VMs that have CPUs nothing is asked of steliad-quiet.
    let is_silent = is_unanswered && quiet.steering != "off" && !vms.is_empty() && sources.is_empty();
    let problem = quiet.problem.clone().or(is_silent.then(|| NOT_REPORTED.to_owned()));
    let problems = quiet.report.problems.iter();
    let problems = problems.filter(|one| one.pod.is_empty() || has(&one.pod));
    Noise {
        problem,
        vms,
        sources,
        problems: problems.cloned().collect(),
        quiet: quiet.clone(),
    }
}

const SOURCES: [Column<Source>; 6] = [
    column("SOURCE", |one: &Source| one.source.clone()),
    column("NAME", |one: &Source| one.name.clone()).yields(1).shortens(),
    column("VM", |one: &Source| whose(&one.vms.iter().collect::<Vec<_>>()))
        .yields(2)
        .shortens(),
    column("CPUS", |one: &Source| one.cpus.to_string()).yields(1),
    column("SEEN", |one: &Source| {
        one.count.map(|count| count.to_string()).unwrap_or_default()
    })
    .right(),
    column("REASON", |one: &Source| {
        if one.disturbs { one.reason } else { "harmless" }.to_owned()
    }),
];

impl Noise {
    fn is_off(&self) -> bool {
        self.quiet.steering == "off"
    }

    fn disturbing(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|one| one.disturbs)
    }

    /// Whether the device interrupts on the CPUs of a VM could be counted.
    fn is_counted(&self) -> bool {
        let mut vms = self.vms.iter();
        vms.any(|vm| vm.interrupts_per_second.or(vm.interrupts_by_ledger).is_some())
    }

    /// What disturbs VMs by its reason, each once with its fix.
    fn findings(&self) -> BTreeSet<(&str, String, &str)> {
        let silent = self.problem.iter();
        let silent = silent.map(|problem| ("noise", problem.clone(), "systemctl status steliad-quiet"));
        let off = self.is_off().then(|| {
            let fix = "set irq-steering = \"shared\" in /etc/stelia/steliad.toml, then systemctl reload steliad";
            ("irq-steering", "off, no interrupt is moved".to_owned(), fix)
        });
        let sources = self.disturbing().map(|one| (one.reason, one.text.clone(), one.fix));
        let problems = self.problems.iter().map(|one| {
            let vm = self.vms.iter().find(|vm| vm.pod.pod_uid == one.pod);
            let whose = vm.map(|vm| format!("{}: ", vm.pod)).unwrap_or_default();
            ("problem", whose + &one.text, "journalctl -u steliad-quiet")
        });
        silent.chain(off).chain(sources).chain(problems).collect()
    }

    fn summary(&self, style: TextStyle) -> String {
        let report = &self.quiet.report;
        let (interrupts, threads) = (report.interrupts.into(), report.threads_moved);
        let (interrupts, threads) = (
            counted(interrupts, "device interrupt"),
            counted(threads, "kernel thread"),
        );
        let left = self.failure().unwrap_or_else(|| "nothing that disturbs VMs".to_owned());
        let mut text = format!("Moved {} of {interrupts}, {threads}. Left: {left}", report.moved);
        let harmless = self.sources.len() - self.disturbing().count();
        if harmless > 0 && !style.wide {
            text += &format!(", {harmless} harmless (-o wide)");
        }
        paragraph(&(text + "."), style)
    }
}

impl Render for Noise {
    fn text(&self, style: TextStyle) -> String {
        let mut parts = Vec::new();
        if self.vms.is_empty() {
            parts.push("No VM has CPUs of its own.\n".to_owned());
        }
        let findings = self.findings();
        let findings = findings.iter().map(|(reason, fact, fix)| {
            let label = match *reason {
                "irq-steering" => ("NOTE", Meaning::Attention),
                _ => ("FAIL", Meaning::Broken),
            };
            stacked(label, reason, fact, "", fix, style)
        });
        parts.push(findings.collect());
        let mut sources = self.sources.iter().filter(|one| one.disturbs || style.wide).peekable();
        if sources.peek().is_some() {
            parts.push(table(&SOURCES, sources, style));
        }
        if style.legend && self.problem.is_none() && !self.is_off() && !self.vms.is_empty() {
            parts.push(self.summary(style));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn failure(&self) -> Option<String> {
        let left = self.disturbing().count() + self.problems.len();
        match &self.problem {
            Some(problem) => Some(problem.clone()),
            None if left > 0 => Some(format!("{} of VMs", counted(left as u64, "disturbance"))),
            None if !self.is_off() && !self.vms.is_empty() && !self.is_counted() => {
                Some("device interrupts on VMs' CPUs could not be counted".to_owned())
            }
            None => None,
        }
    }
}
