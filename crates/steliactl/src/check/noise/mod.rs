//! `noise`: the device interrupts and kernel threads that disturb VMs' CPUs, each with how often, the reason and a fix.
//!
//! An interrupt disturbs a VM if it fires there while this program counts, or if the daemon reports it as a reason of degradation; where
//! nothing can be counted, also if steliad-quiet saw it there. What the kernel keeps there without firing disturbs nobody.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use stelia_api::quiet::{Problem, Quiet, RemainingCause};
use stelia_cpus::CpuSet;

use super::{first_few, group_by_key};
use crate::shared::daemon::{Description, FORMER, Pod, Selected, is_reported, own_cpus, recreate, whose, whose_former};
use crate::shared::kernel::Roots;
use crate::shared::kernel::interrupts::{Fired, interrupts, measured};
use crate::shared::output::{Block, FAIL, NOTE, Render, TextStyle, counted, paragraph};

/// Prefix of the name of a workqueue's rescuer, a thread that runs only when memory is short.
const RESCUER: &str = "kworker/R-";

/// What is known before `steliad-quiet` has answered for the first time.
pub(crate) const NOT_REPORTED: &str = "steliad-quiet has not reported";

const JOURNAL: &str = "journalctl -eu steliad-quiet";
pub(crate) const START: &str = "systemctl enable --now steliad-quiet.socket";
pub(crate) const STEER: &str =
    "set irq-steering = \"shared\" in /etc/stelia/steliad.toml, then systemctl reload steliad";
const OF_THREAD: &str = "look for a setting of its driver's or subsystem's (/usr/share/doc/steliad/quiet-cpus.md)";
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
    #[serde(skip)]
    fix_of_problem: &'static str,
    /// Whether there are VMs whose device interrupts could not be counted.
    #[serde(skip)]
    is_unknown: bool,
    /// The selected VMs that were released and may run on: which, and what to do.
    #[serde(skip)]
    former: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct VmNoise {
    #[serde(flatten)]
    pod: Pod,
    exclusive_cpus: CpuSet,
    /// Device interrupts on its CPUs, without those of its own devices. `None` where they cannot be counted, or all its CPUs are offline.
    interrupts_per_second: Option<u64>,
}

/// A device interrupt that reaches CPUs of VMs, or a kernel thread that may run there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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

/// Why interrupts are not moved off the VMs' CPUs, and what to do; `None`: they are.
pub(crate) fn unmoved_because(quiet: &Quiet) -> Option<(&str, &'static str)> {
    let is_unanswered = quiet.steering.is_empty() || quiet.answered_us == 0 || quiet.report.interrupts == 0;
    match &quiet.problem {
        Some(problem) => Some((problem, JOURNAL)),
        None if quiet.steering == "off" => Some(("irq-steering is off", STEER)),
        None => is_unanswered.then_some((NOT_REPORTED, START)),
    }
}

/// What disturbs the selected VMs.
pub(crate) async fn gather(roots: &Roots, selected: &Selected) -> Noise {
    let fired = measured(&roots.proc, MEASURE_INTERVAL).await;
    Noise {
        former: whose_former(&selected.former).map(|whose| (whose, recreate(&selected.described, &selected.former))),
        ..noise(&selected.described, selected.uids().as_ref(), fired.as_deref())
    }
}

fn noise(described: &Description, selected: Option<&BTreeSet<String>>, fired: Option<&[Fired]>) -> Noise {
    let quiet = &described.node.quiet;
    let has = |uid: &str| selected.is_none_or(|selected| selected.contains(uid));
    // A VM without CPUs of its own has none that could be disturbed.
    let instances = described.node.instances.iter();
    let instances = instances.map(|(uid, one)| (uid, one, own_cpus(one)));
    let instances = instances.filter(|(uid, _, own)| !own.is_empty() && has(uid.as_str()));
    let online = described.node.topology.online();
    let mut firing = BTreeMap::<u32, (CpuSet, u64)>::new();
    let vms = instances.map(|(uid, one, own)| {
        let locality = described.locality.instances.get(uid.as_str());
        let mut sum = 0;
        for interrupt in fired.unwrap_or_default() {
            if let Some((cpus, rate)) = interrupt.on(&own, locality) {
                let (there, rates) = firing.entry(interrupt.irq).or_default();
                there.union_with(&cpus);
                (*rates, sum) = (rates.saturating_add(rate), rate.saturating_add(sum));
            }
        }
        // Where no CPU is known, none is known to be offline.
        let is_online = online.is_empty() || !own.is_disjoint(&online);
        VmNoise {
            pod: Pod::of(uid, one),
            exclusive_cpus: own,
            interrupts_per_second: fired.filter(|_| is_online).map(|_| sum),
        }
    });
    let mut vms: Vec<VmNoise> = vms.collect();
    vms.sort_by_cached_key(|vm| (Reverse(vm.interrupts_per_second), vm.pod.to_string()));
    let (problem, fix_of_problem) = match unmoved_because(quiet) {
        // Without VMs that have CPUs nothing is asked of steliad-quiet.
        Some((NOT_REPORTED, _)) | None if vms.is_empty() => (None, ""),
        Some((problem, fix)) => (Some(problem), fix),
        None => (None, "steliactl reconcile"),
    };
    let of_irq = |irq: u32, name: &str, cpus: &CpuSet, reason, text, fix| {
        let there = firing.get(&irq);
        Source {
            cpus: there.map_or(cpus, |(cpus, _)| cpus).clone(),
            text,
            per_second: fired.map(|_| there.map_or(0, |(_, rate)| *rate)),
            ..Source::new(format!("irq {irq}"), name, reason, fix)
        }
    };
    let remaining = quiet.report.remaining.iter().map(|one| {
        // What the kernel says of a mask that it does not take is the same of each.
        let is_plain = one.text.is_empty() || one.why == RemainingCause::Managed;
        let error = if is_plain { "" } else { &format!(": {}", one.text) };
        let text = format!("{}{error}", one.why.text());
        Source {
            count: Some(one.count),
            disturbs: is_reported(described, one),
            ..of_irq(one.irq, &one.name, &one.cpus, one.why.name(), text, one.why.fix())
        }
    });
    let is_left = |irq| quiet.report.remaining.iter().any(|one| one.irq == irq);
    let unmoved = fired.unwrap_or_default().iter();
    let unmoved = unmoved.filter(|one| !is_left(one.irq)).map(|one| {
        let text = problem.unwrap_or("steliad-quiet has not moved it yet").to_owned();
        of_irq(one.irq, &one.name, &CpuSet::new(), "not-moved", text, fix_of_problem)
    });
    let threads = quiet.report.threads_remaining.iter().map(|one| Source {
        cpus: one.cpus.clone(),
        text: format!("the thread's CPUs cannot be set: {}", one.text),
        disturbs: !one.name.starts_with(RESCUER),
        ..Source::new(format!("thread {}", one.id), &one.name, "bound", OF_THREAD)
    });
    let mut sources: Vec<Source> = remaining.chain(unmoved).chain(threads).collect();
    for one in &mut sources {
        let reached: Vec<&VmNoise> = vms
            .iter()
            .filter(|vm| !vm.exclusive_cpus.is_disjoint(&one.cpus))
            .collect();
        one.disturbs |= one.per_second > Some(0) || (fired.is_none() && one.count > Some(0));
        let all = reached
            .iter()
            .fold(CpuSet::new(), |all, vm| all.union(&vm.exclusive_cpus));
        one.cpus = all.intersection(&one.cpus);
        one.vms = reached.into_iter().map(|vm| vm.pod.clone()).collect();
    }
    sources.retain(|one| !one.vms.is_empty());
    sources.sort_by_key(|one| Reverse((one.disturbs, one.per_second, one.count)));
    let problems = quiet.report.problems.iter();
    let problems = problems.filter(|one| one.pod.is_empty() || has(&one.pod));
    Noise {
        problem: problem.map(str::to_owned),
        fix_of_problem,
        sources,
        problems: problems.cloned().collect(),
        is_unknown: fired.is_none() && !vms.is_empty(),
        vms,
        ..Noise::default()
    }
}

impl Source {
    fn new(source: String, name: &str, reason: &'static str, fix: &'static str) -> Self {
        Self {
            source,
            name: name.to_owned(),
            reason,
            fix,
            ..Self::default()
        }
    }

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
    pub(super) fn blocks(&self) -> Vec<Block> {
        let fail = |subject: &str, fact: &str, fix: &str| Block::new(FAIL, subject, fact, "", fix);
        let note = |subject: &str, fact: &str, effect, fix: &str| Block::new(NOTE, subject, fact, effect, fix);
        let mut all = Vec::new();
        for ((why, fix), sources) in group_by_key(self.disturbing().map(|one| ((&one.text, one.fix), one))) {
            for (whose, facts) in group_by_key(sources.iter().map(|one| (one.whose(), one.fact()))) {
                all.push(fail(&whose, &format!("{}; {why}", first_few(&facts)), fix));
            }
        }
        for one in &self.problems {
            let vm = self.vms.iter().find(|vm| vm.pod.pod_uid == one.pod);
            let whose = vm.map_or("node".to_owned(), |vm| vm.pod.to_string());
            all.push(fail(&whose, &one.text, JOURNAL));
        }
        let is_told = |problem: &&String| self.disturbing().any(|one| one.text == **problem);
        if let Some(problem) = self.problem.as_ref().filter(|problem| !is_told(problem)) {
            let effect = "device interrupts are not moved off VMs' CPUs";
            all.push(note("node", problem, effect, self.fix_of_problem));
        }
        if self.is_unknown {
            let fact = format!("{UNCOUNTED}: /proc/interrupts cannot be read");
            all.push(fail("node", &fact, ""));
        }
        let offline = self
            .vms
            .iter()
            .filter(|vm| !self.is_unknown && vm.interrupts_per_second.is_none());
        let offline: Vec<&Pod> = offline.map(|vm| &vm.pod).collect();
        if !offline.is_empty() {
            all.push(note(&whose(&offline), "all its CPUs are offline", "", ""));
        }
        if let Some((whose, fix)) = self.former.as_ref().filter(|_| self.vms.is_empty()) {
            all.push(note(whose, FORMER, "", fix));
        }
        all
    }

    /// `1 of 2 VMs disturbed`, unless none is.
    fn disturbed(&self) -> Option<String> {
        let disturbed: BTreeSet<&Pod> = self.disturbing().flat_map(|one| &one.vms).collect();
        let all = counted(self.vms.len() as u64, "VM");
        (!disturbed.is_empty()).then(|| format!("{} of {all} disturbed", disturbed.len()))
    }

    /// `1 of 2 VMs disturbed. Not counted: 1 VM. 3 harmless sources (-o json).`
    fn summary(&self, style: TextStyle) -> String {
        let of_vms = |count: usize| counted(count as u64, "VM");
        let measured = self.vms.iter().filter(|vm| vm.interrupts_per_second.is_some()).count();
        let unmeasured = self.vms.len() - measured;
        let harmless = (self.sources.len() - self.disturbing().count()) as u64;
        let time = MEASURE_INTERVAL.as_secs();
        let none = || "No VM has CPUs of its own: nothing was counted".to_owned();
        let calm = || format!("No device interrupted {} for {time} s", of_vms(measured));
        let parts = [
            self.vms.is_empty().then(none),
            self.disturbed().or_else(|| (measured > 0).then(calm)),
            (unmeasured > 0).then(|| format!("Not counted: {}", of_vms(unmeasured))),
            (self.problem.as_deref() == Some(NOT_REPORTED)).then(|| "Kernel threads are not known".to_owned()),
            (harmless > 0).then(|| format!("{} (-o json)", counted(harmless, "harmless source"))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        paragraph(&format!("{}.", parts.join(". ")), style)
    }
}

impl Render for Noise {
    fn text(&self, style: TextStyle) -> String {
        let blocks: String = self.blocks().iter().map(|block| block.text(style)).collect();
        if !style.legend {
            return blocks;
        }
        let blank = if blocks.is_empty() { "" } else { "\n" };
        blocks + blank + &self.summary(style)
    }

    fn failure(&self) -> Option<String> {
        match (self.disturbed(), self.problems.len() as u64) {
            (Some(disturbed), _) => Some(disturbed),
            (None, 0) => self.is_unknown.then(|| UNCOUNTED.to_owned()),
            (None, problems) => Some(counted(problems, "disturbance")),
        }
    }
}
