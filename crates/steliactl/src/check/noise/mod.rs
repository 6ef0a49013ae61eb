//! `noise`: the device interrupts and kernel threads that disturb VMs' CPUs, each with how often, the reason and a fix.
//!
//! An interrupt disturbs a VM if it fires there while this program counts, if the daemon reports it as a reason of degradation, or if it was
//! seen there and the ledger has device interrupts. What the kernel keeps there without firing disturbs nobody.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stelia_api::quiet::{Problem, Quiet, RemainingCause};
use stelia_cpus::CpuSet;

use super::{first_few, group_by_key};
use crate::shared::daemon::{Description, Pod, Selected, is_reported, whose};
use crate::shared::kernel::Roots;
use crate::shared::kernel::interrupts::{Fired, interrupts, measured};
use crate::shared::output::{
    Column, Meaning, Render, TextStyle, column, counted, paragraph, printable, stacked, table,
};

/// Prefix of the name of a workqueue's rescuer, a thread that runs only when memory is short.
const RESCUER: &str = "kworker/R-";

/// What is known before `steliad-quiet` has answered for the first time.
pub(crate) const NOT_REPORTED: &str = "steliad-quiet has not reported";

const JOURNAL: &str = "journalctl -eu steliad-quiet";
const UNCOUNTED: &str = "device interrupts could not be counted";

/// How long device interrupts are counted.
pub(super) const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// What disturbs the VMs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Noise {
    /// Why interrupts are not moved.
    problem: Option<String>,
    vms: Vec<VmNoise>,
    /// Those that disturb most first.
    sources: Vec<Source>,
    /// What else could not be done; without a pod where it is of no VM in particular.
    problems: Vec<Problem>,
    /// What was done on the node.
    #[serde(skip)]
    quiet: Arc<Quiet>,
    /// Whether device interrupts could be counted.
    #[serde(skip)]
    is_counted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct VmNoise {
    #[serde(flatten)]
    pod: Pod,
    exclusive_cpus: CpuSet,
    /// Device interrupts on its CPUs, without those of its own devices. `None` where they cannot be counted, or all its CPUs are offline.
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
    /// Those that it disturbs now, or else may reach.
    vms: Vec<Pod>,
    cpus: CpuSet,
    reason: &'static str,
    text: String,
    fix: &'static str,
    /// How often an interrupt fired there a second.
    per_second: Option<u64>,
    /// How often it was seen there since `steliad-quiet` first wanted it off.
    count: Option<u64>,
    disturbs: bool,
}

/// What disturbs the selected VMs.
pub(crate) async fn gather(roots: &Roots, selected: &Selected) -> Noise {
    let fired = measured(&roots.proc, MEASURE_INTERVAL).await;
    noise(&selected.described, selected.uids().as_ref(), fired.as_deref())
}

fn noise(described: &Description, selected: Option<&BTreeSet<String>>, fired: Option<&[Fired]>) -> Noise {
    let (quiet, ledger) = (&described.node.quiet, &described.node.ledger);
    let has = |uid: &str| selected.is_none_or(|selected| selected.contains(uid));
    // A VM without CPUs of its own has none that could be disturbed.
    let instances = described.node.instances.iter();
    let instances = instances.filter(|(uid, one)| !one.exclusive.is_empty() && has(uid.as_str()));
    let online = described.node.topology.online();
    let mut firing = BTreeMap::<u32, (CpuSet, u64)>::new();
    let vms = instances.map(|(uid, one)| {
        let locality = described.locality.instances.get(uid.as_str());
        let mut sum = 0;
        for interrupt in fired.unwrap_or_default() {
            if let Some((cpus, rate)) = interrupt.on(&one.exclusive, locality) {
                let (there, rates) = firing.entry(interrupt.irq).or_default();
                there.union_with(&cpus);
                (*rates, sum) = (rates.saturating_add(rate), rate.saturating_add(sum));
            }
        }
        let by_ledger = ledger.vms.get(uid.as_str()).filter(|one| one.covered_us > 0);
        VmNoise {
            pod: Pod::of(uid, one),
            exclusive_cpus: one.exclusive.clone(),
            // Where no CPU is known, none is known to be offline.
            interrupts_per_second: fired
                .filter(|_| online.is_empty() || !one.exclusive.is_disjoint(&online))
                .map(|_| sum),
            interrupts_by_ledger: by_ledger.map(|one| one.devices),
        }
    });
    let mut vms: Vec<VmNoise> = vms.collect();
    vms.sort_by_cached_key(|vm| {
        let counted = (vm.interrupts_per_second, vm.interrupts_by_ledger);
        (Reverse(counted), vm.pod.to_string())
    });
    let is_off = quiet.steering == "off";
    let is_unanswered = quiet.steering.is_empty() || quiet.answered_us == 0 || quiet.report.interrupts == 0;
    let problem = quiet.problem.as_deref();
    // Without VMs that have CPUs nothing is asked of steliad-quiet.
    let problem = problem.or((is_unanswered && !is_off && !vms.is_empty()).then_some(NOT_REPORTED));
    let problem = problem.or(is_off.then_some("irq-steering is off"));
    let source = |source, name: &str, cpus: &CpuSet, (reason, text, fix)| {
        let reached = vms.iter().filter(|vm| !vm.exclusive_cpus.is_disjoint(cpus));
        let all = reached
            .clone()
            .fold(CpuSet::new(), |all, vm| all.union(&vm.exclusive_cpus));
        Source {
            source,
            name: name.to_owned(),
            cpus: all.intersection(cpus),
            reason,
            text,
            fix,
            per_second: None,
            count: None,
            disturbs: reached.clone().any(|vm| vm.interrupts_by_ledger != Some(0)),
            vms: reached.map(|vm| vm.pod.clone()).collect(),
        }
    };
    let remaining = quiet.report.remaining.iter().map(|one| {
        let rate = fired.map(|_| firing.get(&one.irq).map_or(0, |(_, rate)| *rate));
        // What the kernel says of a mask that it does not take is the same of each.
        let is_plain = one.text.is_empty() || one.why == RemainingCause::Managed;
        let error = if is_plain { "" } else { &format!(": {}", one.text) };
        let why = (one.why.name(), format!("{}{error}", one.why.text()), one.why.fix());
        let cpus = firing.get(&one.irq).map_or(&one.cpus, |(cpus, _)| cpus);
        let source = source(format!("irq {}", one.irq), &one.name, cpus, why);
        Source {
            disturbs: rate > Some(0) || one.count > 0 && source.disturbs || is_reported(described, one),
            per_second: rate,
            count: Some(one.count),
            ..source
        }
    });
    let is_left = |irq| quiet.report.remaining.iter().any(|one| one.irq == irq);
    let (why, fix) = match problem {
        Some(problem) => (problem, fix_of_steering(quiet)),
        None => ("steliad-quiet has not moved it yet", "steliactl reconcile"),
    };
    let unmoved = fired.unwrap_or_default().iter().filter(|one| !is_left(one.irq));
    let unmoved = unmoved.filter_map(|one| {
        let (cpus, rate) = firing.get(&one.irq)?;
        let why = ("not-moved", why.to_owned(), fix);
        let source = source(format!("irq {}", one.irq), &one.name, cpus, why);
        Some(Source {
            per_second: Some(*rate),
            disturbs: true,
            ..source
        })
    });
    let threads = quiet.report.threads_remaining.iter().map(|one| {
        let text = format!("the thread's CPUs cannot be set: {}", one.text);
        let fix = "look for a setting of its driver's or subsystem's (/usr/share/doc/steliad/quiet-cpus.md)";
        let source = source(format!("thread {}", one.id), &one.name, &one.cpus, ("bound", text, fix));
        Source {
            disturbs: !one.name.starts_with(RESCUER),
            ..source
        }
    });
    let sources = remaining.chain(unmoved).chain(threads);
    let mut sources: Vec<Source> = sources.filter(|one| !one.vms.is_empty()).collect();
    sources.sort_by_key(|one| Reverse((one.disturbs, one.per_second, one.count)));
    let problems = quiet.report.problems.iter();
    let problems = problems.filter(|one| one.pod.is_empty() || has(&one.pod));
    Noise {
        problem: problem.map(str::to_owned),
        sources,
        problems: problems.cloned().collect(),
        quiet: quiet.clone(),
        is_counted: fired.is_some(),
        vms,
    }
}

/// What makes `steliad-quiet` move interrupts.
fn fix_of_steering(quiet: &Quiet) -> &'static str {
    match quiet.steering.as_str() {
        "off" => "set irq-steering = \"shared\" in /etc/stelia/steliad.toml, then systemctl reload steliad",
        _ if quiet.problem.is_some() => JOURNAL,
        _ => "systemctl enable --now steliad-quiet.socket",
    }
}

const SOURCES: [Column<Source>; 7] = [
    column("SOURCE", |one: &Source| one.source.clone()),
    column("NAME", |one: &Source| one.name.clone()).yields(1).shortens(),
    column("VM", |one: &Source| one.whose()).yields(2).shortens(),
    column("CPUS", |one: &Source| one.cpus.to_string()).yields(1),
    column("PER SECOND", |one: &Source| number(one.per_second)).right(),
    column("SEEN", |one: &Source| number(one.count)).right(),
    column("REASON", |one: &Source| {
        if one.disturbs { one.reason } else { "harmless" }.to_owned()
    }),
];

fn number(count: Option<u64>) -> String {
    count.map(|count| count.to_string()).unwrap_or_default()
}

impl Source {
    fn whose(&self) -> String {
        whose(&self.vms.iter().collect::<Vec<_>>())
    }

    /// "890 interrupts/s on CPU 5 by eth0-TxRx-1 (irq 31)".
    fn fact(&self) -> String {
        let by = format!("{} ({})", self.name, self.source);
        match (self.per_second, self.count) {
            (Some(rate @ 1..), _) => format!("{} by {by}", interrupts(rate, "/s", &self.cpus)),
            (_, Some(count)) => format!("{} so far by {by}", interrupts(count, "", &self.cpus)),
            _ => format!("kernel thread {by} may run on CPUs {}", self.cpus),
        }
    }
}

impl Noise {
    fn disturbing(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|one| one.disturbs)
    }

    /// What disturbs VMs, by reason and VMs, with a fix below all of one reason; then what is not known.
    fn findings(&self, style: TextStyle) -> String {
        let fail = |subject: &str, fact: &str, fix| stacked(("FAIL", Meaning::Broken), subject, fact, "", fix, style);
        let note = |subject: &str, fact: &str, effect, fix| {
            stacked(("NOTE", Meaning::Attention), subject, fact, effect, fix, style)
        };
        let mut text = String::new();
        for ((why, fix), sources) in group_by_key(self.disturbing().map(|one| ((&one.text, one.fix), one))) {
            let vms = group_by_key(sources.iter().map(|one| (one.whose(), one.fact())));
            for (whose, facts) in &vms {
                text += &fail(whose, &format!("{}; {why}", first_few(facts)), fix);
            }
        }
        let problems = self.problems.iter().map(|one| {
            let vm = self.vms.iter().find(|vm| vm.pod.pod_uid == one.pod);
            let whose = vm.map_or("node".to_owned(), |vm| vm.pod.to_string());
            fail(&whose, &one.text, JOURNAL)
        });
        let is_told = |problem: &&String| self.disturbing().any(|one| one.text == **problem);
        let effect = "device interrupts are not moved off VMs' CPUs";
        let problem = self.problem.iter().filter(|problem| !is_told(problem));
        let problem = problem.map(|problem| note("node", problem, effect, fix_of_steering(&self.quiet)));
        let unread = format!("{UNCOUNTED}: /proc/interrupts cannot be read");
        let unread = (!self.is_counted).then(|| note("node", &unread, "", ""));
        let offline = self
            .vms
            .iter()
            .filter(|vm| self.is_counted && vm.interrupts_per_second.is_none());
        let offline: Vec<&Pod> = offline.map(|vm| &vm.pod).collect();
        let offline = (!offline.is_empty()).then(|| note(&whose(&offline), "all its CPUs are offline", "", ""));
        text + &problems.chain(problem).chain(unread).chain(offline).collect::<String>()
    }

    /// `1 of 2 VMs disturbed`, unless none is.
    fn disturbed(&self) -> Option<String> {
        let disturbed: BTreeSet<&Pod> = self.disturbing().flat_map(|one| &one.vms).collect();
        let all = counted(self.vms.len() as u64, "VM");
        (!disturbed.is_empty()).then(|| format!("{} of {all} disturbed", disturbed.len()))
    }

    /// `1 of 2 VMs disturbed. Moved 12 of 40 device interrupts, 2 kernel threads.`
    fn summary(&self, style: TextStyle) -> String {
        let report = &self.quiet.report;
        let measured = self.vms.iter().filter(|vm| vm.interrupts_per_second.is_some());
        let mut parts = Vec::new();
        match (self.disturbed(), measured.count() as u64) {
            (Some(disturbed), _) => parts.push(format!("{disturbed}.")),
            (None, 0) => {}
            (None, measured) => {
                let measured = counted(measured, "VM");
                parts.push(format!(
                    "Nothing disturbed {measured} for {} s.",
                    MEASURE_INTERVAL.as_secs()
                ));
            }
        }
        if self.problem.is_none() {
            let interrupts = counted(report.interrupts.into(), "device interrupt");
            let threads = counted(report.threads_moved, "kernel thread");
            parts.push(format!("Moved {} of {interrupts}, {threads}.", report.moved));
        }
        let harmless = self.sources.len() - self.disturbing().count();
        if harmless > 0 && !style.wide {
            parts.push(format!("{} (-o wide).", counted(harmless as u64, "harmless source")));
        }
        paragraph(&parts.join(" "), style)
    }
}

impl Render for Noise {
    fn text(&self, style: TextStyle) -> String {
        if self.vms.is_empty() {
            return "No VM has CPUs of its own.\n".to_owned();
        }
        let heading = match self.vms.as_slice() {
            [vm] if style.legend => &format!("{}: CPUs {}\n", printable(&vm.pod.to_string()), vm.exclusive_cpus),
            _ => "",
        };
        let mut parts = vec![heading.to_owned() + &self.findings(style)];
        if style.wide && !self.sources.is_empty() {
            parts.push(table(&SOURCES, &self.sources, style));
        }
        if style.legend {
            parts.push(self.summary(style));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    /// What the ledger counted instead is no failure, nor is it called calm.
    fn failure(&self) -> Option<String> {
        let is_unknown = !self.is_counted && self.vms.iter().any(|vm| vm.interrupts_by_ledger.is_none());
        match (self.disturbed(), self.problems.len() as u64) {
            (Some(disturbed), _) => Some(disturbed),
            (None, 0) => is_unknown.then(|| UNCOUNTED.to_owned()),
            (None, problems) => Some(counted(problems, "disturbance")),
        }
    }
}
