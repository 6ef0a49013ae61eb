//! Plans the writes to tracefs that make the kernel count what runs on CPUs. Pure.
//!
//! Documentation/trace/histogram.rst describes the triggers' language. Each CPU range is a comparison, because kernel 6.1 does
//! not know the shorter `CPU & CPUS{2-3}`. How long something ran is a variable that is set at its begin and read at its
//! end. A variable cannot be summed, so reading it fires a synthetic event, whose field is summed.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use stelia_cpus::CpuSet;

use crate::order::Target;

/// Where tracefs is mounted.
pub(crate) const ROOT: &str = "/sys/kernel/tracing";
/// Our own instance. It outlives this program.
pub(crate) const INSTANCE: &str = "/sys/kernel/tracing/instances/steliad-quiet";
/// The file through which synthetic events are made and removed.
pub(crate) const DYNAMIC: &str = "/sys/kernel/tracing/dynamic_events";

/// Name of the synthetic event that fires when a task's run ends. Every tracefs instance sees it, so the name is steliad's own.
pub(crate) const RUN: &str = "stelia_run";
pub(crate) const INTERRUPT: &str = "stelia_irq";
pub(crate) const SOFTIRQ: &str = "stelia_softirq";
pub(crate) const VECTOR: &str = "stelia_vector";
pub(crate) const SYNTHETIC: [&str; 4] = [RUN, INTERRUPT, SOFTIRQ, VECTOR];

pub(crate) const SWITCH: &str = "sched/sched_switch";
pub(crate) const INTERRUPT_ENTRY: &str = "irq/irq_handler_entry";
const INTERRUPT_EXIT: &str = "irq/irq_handler_exit";
pub(crate) const SOFTIRQ_ENTRY: &str = "irq/softirq_entry";
const SOFTIRQ_EXIT: &str = "irq/softirq_exit";
pub(crate) const NMI: &str = "nmi/nmi_handler";
/// The CPUs' own interrupts, on x86. On arm64 they are among those of [`INTERRUPT_ENTRY`].
pub(crate) const VECTORS: &str = "irq_vectors";

/// Limits of the two parts of a filter, in bytes: the kernel takes less than a page in one write.
const MAX_CPU_FILTER_BYTES: usize = 1200;
const MAX_OWN_FILTER_BYTES: usize = 2000;

/// The vectors whose times are measured. The others, such as those for errors, are rare, and a time takes two more triggers.
const TIMED_VECTORS: [&str; 5] = [
    "local_timer",
    "reschedule",
    "call_function",
    "call_function_single",
    "irq_work",
];

/// A kind of counts. A part needs only its own steps and those of earlier parts; without the first, nothing is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Tasks,
    TaskTimes,
    Interrupts,
    InterruptTimes,
    Softirqs,
    SoftirqTimes,
    Vectors,
    VectorTimes,
    Nmis,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tasks => "tasks are not counted",
            Self::TaskTimes => "how long tasks ran is not known",
            Self::Interrupts => "devices' interrupts are not counted",
            Self::InterruptTimes => "how long devices' interrupts took is not known",
            Self::Softirqs => "softirqs are not counted",
            Self::SoftirqTimes => "how long softirqs took is not known",
            Self::Vectors => "the CPUs' own interrupts are not counted",
            Self::VectorTimes => "how long the CPUs' own interrupts took is not known",
            Self::Nmis => "non-maskable interrupts are not counted",
        })
    }
}

/// One write to tracefs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub part: Part,
    pub path: String,
    pub text: String,
    /// The event that gets a histogram by this write, as in [`hist`].
    pub event: Option<String>,
}

/// The trigger file of an event (`sched/sched_switch`) in steliad's tracefs instance.
pub(crate) fn trigger(event: &str) -> String {
    format!("{INSTANCE}/events/{event}/trigger")
}

/// The file with the event's histograms.
pub(crate) fn hist(event: &str) -> String {
    format!("{INSTANCE}/events/{event}/hist")
}

/// The writes, in order. `offered` are the kernel's events: a part whose events are missing has no steps.
pub(crate) fn plan(target: &Target, offered: &BTreeSet<String>) -> Vec<Step> {
    let mut plan = Plan {
        ranges: ranges(&target.cpus),
        cpus: target.cpus.len(),
        offered,
        steps: Vec::new(),
    };
    plan.tasks(target);
    plan.interrupts();
    plan.softirqs();
    plan.vectors();
    if plan.offers(&[NMI]) {
        let keys = "hist:keys=handled,common_cpu:vals=delta_ns";
        plan.for_each_range(Part::Nmis, NMI, |_, range| format!("{keys}:size=128 if {range}"));
    }
    plan.steps
}

struct Plan<'a> {
    /// Filters that together contain each CPU once.
    ranges: Vec<String>,
    cpus: usize,
    offered: &'a BTreeSet<String>,
    steps: Vec<Step>,
}

impl Plan<'_> {
    fn offers(&self, events: &[&str]) -> bool {
        events.iter().all(|event| self.offered.contains(*event))
    }

    /// A synthetic event, and a trigger that sums its times.
    fn sum_event(&mut self, part: Part, name: &str, fields: &str, keys: &str, size: usize) {
        self.steps.push(Step {
            part,
            path: DYNAMIC.to_owned(),
            text: format!("s:{name} {fields}; u64 ns"),
            event: None,
        });
        let event = format!("synthetic/{name}");
        self.steps.push(Step {
            part,
            path: trigger(&event),
            text: format!("hist:keys={keys},common_cpu:vals=ns:size={size}"),
            event: Some(event),
        });
    }

    /// A trigger for each range of CPUs. `text` gets the range's number, which makes names of variables unique, and its filter.
    fn for_each_range(&mut self, part: Part, event: &str, text: impl Fn(usize, &str) -> String) {
        for (number, range) in self.ranges.iter().enumerate() {
            self.steps.push(Step {
                part,
                path: trigger(event),
                text: text(number, range),
                event: Some(event.to_owned()),
            });
        }
    }

    fn tasks(&mut self, target: &Target) {
        let own = &target.own;
        let (next, previous) = (excluded("next_pid", own), excluded("prev_pid", own));
        let by_thread = target.by_thread || next.is_none();
        let number = if by_thread { ",next_pid" } else { "" };
        let summed = if by_thread { "comm,pid" } else { "comm" };
        let (next, previous) = (next.unwrap_or_default(), previous.unwrap_or_default());
        let size = self.size(if number.is_empty() { 64 } else { 128 }, 2048);
        self.for_each_range(Part::Tasks, SWITCH, |_, range| {
            format!("hist:keys=next_comm{number},common_cpu:size={size} if {range} && next_pid != 0{next}")
        });
        let runs = self.size(128, 4096);
        self.sum_event(Part::TaskTimes, RUN, "char comm[16]; pid_t pid", summed, size);
        self.for_each_range(Part::TaskTimes, SWITCH, |i, range| {
            let keys = format!("hist:keys=next_pid,common_cpu:stelia_from{i}=common_timestamp");
            format!("{keys}:size={runs}:clock=local if {range} && next_pid != 0{next}")
        });
        self.for_each_range(Part::TaskTimes, SWITCH, |i, range| {
            let keys = format!("hist:keys=prev_pid,common_cpu:stelia_ns{i}=common_timestamp-$stelia_from{i}");
            let fires = format!("onmatch(sched.sched_switch).{RUN}(prev_comm,prev_pid,$stelia_ns{i})");
            format!("{keys}:{fires}:size={runs}:clock=local if {range} && prev_pid != 0{previous}")
        });
    }

    fn interrupts(&mut self) {
        if !self.offers(&[INTERRUPT_ENTRY, INTERRUPT_EXIT]) {
            return;
        }
        let size = self.size(16, 1024);
        self.for_each_range(Part::Interrupts, INTERRUPT_ENTRY, |_, range| {
            format!("hist:keys=irq,name,common_cpu:size={size} if {range}")
        });
        self.sum_event(Part::InterruptTimes, INTERRUPT, "int n", "n", size);
        self.entry(Part::InterruptTimes, INTERRUPT_ENTRY, ("irq", "irq"), size);
        self.exit(
            Part::InterruptTimes,
            [INTERRUPT_ENTRY, INTERRUPT_EXIT],
            ("irq", "irq", INTERRUPT),
            size,
        );
    }

    fn softirqs(&mut self) {
        if !self.offers(&[SOFTIRQ_ENTRY, SOFTIRQ_EXIT]) {
            return;
        }
        let size = self.size(16, 256);
        self.entry(Part::Softirqs, SOFTIRQ_ENTRY, ("vec", "softirq"), size);
        self.sum_event(Part::SoftirqTimes, SOFTIRQ, "u32 n", "n", size);
        self.exit(
            Part::SoftirqTimes,
            [SOFTIRQ_ENTRY, SOFTIRQ_EXIT],
            ("vec", "softirq", SOFTIRQ),
            size,
        );
    }

    fn vectors(&mut self) {
        let offered = self.offered.iter();
        let names = offered.filter_map(|event| event.strip_prefix(VECTORS)?.strip_prefix('/')?.strip_suffix("_entry"));
        let (timed, plain): (Vec<&str>, Vec<&str>) = names.partition(|name| {
            let exit = format!("{VECTORS}/{name}_exit");
            TIMED_VECTORS.contains(name) && self.offers(&[&exit])
        });
        let size = self.size(1, 128);
        for name in plain {
            let event = format!("{VECTORS}/{name}_entry");
            let keys = "hist:keys=vector,common_cpu";
            self.for_each_range(Part::Vectors, &event, |_, range| {
                format!("{keys}:size={size} if {range}")
            });
        }
        for name in &timed {
            let entry = format!("{VECTORS}/{name}_entry");
            self.entry(Part::Vectors, &entry, ("vector", name), size);
        }
        if timed.is_empty() {
            return;
        }
        let all = self.size(TIMED_VECTORS.len(), 128);
        self.sum_event(Part::VectorTimes, VECTOR, "int n", "n", all);
        for name in &timed {
            let events = [format!("{VECTORS}/{name}_entry"), format!("{VECTORS}/{name}_exit")];
            let events = [events[0].as_str(), events[1].as_str()];
            self.exit(Part::VectorTimes, events, ("vector", name, VECTOR), size);
        }
    }

    /// A trigger that counts, and stores the time at which it began. `field` is the event's field with the number, `name` makes
    /// the variable's name unique.
    fn entry(&mut self, part: Part, event: &str, (field, name): (&str, &str), size: usize) {
        self.for_each_range(part, event, |i, range| {
            let keys = format!("hist:keys={field},common_cpu:stelia_from_{name}{i}=common_timestamp");
            format!("{keys}:size={size}:clock=local if {range}")
        });
    }

    /// A trigger that fires the synthetic event with the time since the entry.
    fn exit(
        &mut self,
        part: Part,
        [entry, exit]: [&str; 2],
        (field, name, synthetic): (&str, &str, &str),
        size: usize,
    ) {
        let matching = entry.replace('/', ".");
        self.for_each_range(part, exit, |i, range| {
            let ns = format!("stelia_ns_{name}{i}");
            let keys = format!("hist:keys={field},common_cpu:{ns}=common_timestamp-$stelia_from_{name}{i}");
            let fires = format!("onmatch({matching}).{synthetic}({field},${ns})");
            format!("{keys}:{fires}:size={size}:clock=local if {range}")
        });
    }

    /// The number of different keys in a histogram: a power of two, to which the kernel rounds up anyway, and limited to a few
    /// MiB.
    fn size(&self, keys_per_cpu: usize, least: usize) -> usize {
        self.cpus
            .saturating_mul(keys_per_cpu)
            .clamp(least, 65_536)
            .next_power_of_two()
    }
}

/// The filter of these CPUs, such as `(CPU >= 2 && CPU <= 3 || CPU == 6)`; several if one would be too long.
fn ranges(cpus: &CpuSet) -> Vec<String> {
    let numbers = cpus.iter().map(i64::from);
    let terms = runs(numbers).into_iter().map(|(first, last)| {
        if first == last {
            format!("CPU == {first}")
        } else {
            format!("(CPU >= {first} && CPU <= {last})")
        }
    });
    let mut ranges: Vec<String> = Vec::new();
    for term in terms {
        match ranges.last_mut() {
            Some(range) if range.len() + term.len() < MAX_CPU_FILTER_BYTES => {
                range.push_str(" || ");
                range.push_str(&term);
            }
            _ => ranges.push(term),
        }
    }
    ranges.into_iter().map(|range| format!("({range})")).collect()
}

/// The filter that excludes these threads, such as ` && next_pid != 7 && (next_pid < 9 || next_pid > 12)`; `None`: it would be
/// too long.
fn excluded(field: &str, own: &BTreeSet<i32>) -> Option<String> {
    let mut text = String::new();
    for (first, last) in runs(own.iter().map(|thread| i64::from(*thread))) {
        text.push_str(&if first == last {
            format!(" && {field} != {first}")
        } else {
            format!(" && ({field} < {first} || {field} > {last})")
        });
        if text.len() > MAX_OWN_FILTER_BYTES {
            return None;
        }
    }
    Some(text)
}

/// First and last of each run of consecutive numbers. `numbers` ascend.
fn runs(numbers: impl Iterator<Item = i64>) -> Vec<(i64, i64)> {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}
