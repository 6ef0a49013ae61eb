//! The account in words, for the table and the page alike.

use std::borrow::Cow;
use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::CpuSet;
use stelia_ledger::account::{Account, Day, Range, Totals, Window};
use stelia_ledger::entry::{Class, Closed};

use super::owner;
use crate::shared::located;

/// A class of what ran, with its sums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub what: Cow<'static, str>,
    /// Empty where it is not counted.
    pub count: String,
    /// Empty where it is not measured.
    pub time: String,
    /// By name, the most frequent first.
    pub names: Vec<(String, u64)>,
    /// What it is, for somebody who pays for the CPUs.
    pub means: Cow<'static, str>,
    /// Whether 0 of it is promised, and it is not 0.
    pub amiss: bool,
}

/// The classes in the order in which a customer asks for them.
pub(super) fn rows(account: &Account) -> Vec<Row> {
    let mut rows = rows_of_vm(&account.totals);
    if account.is_container {
        for row in &mut rows {
            row.what = owner::of_container(&row.what).into();
            row.means = owner::of_container(&row.means).into();
        }
    }
    rows
}

fn rows_of_vm(totals: &Totals) -> Vec<Row> {
    let row =
        |what: &'static str, count: String, time: String, names: &BTreeMap<String, u64>, means: &'static str| Row {
            what: what.into(),
            count,
            time,
            names: by_count(names),
            means: means.into(),
            amiss: false,
        };
    let none = BTreeMap::new();
    let sum = |names: &BTreeMap<String, u64>| grouped(total(names));
    let bound = totals
        .kernel_threads
        .iter()
        .map(|(name, ran)| (name.clone(), ran.count));
    let bound: BTreeMap<String, u64> = bound.collect();
    let bound_ns = totals
        .kernel_threads
        .values()
        .fold(0, |all: u64, ran| all.saturating_add(ran.ns));
    let mut rows = vec![
        row(
            "Other tasks",
            range(totals.other_tasks),
            String::new(),
            &none,
            "How often a program or a kernel thread began to run on the VM's CPUs that is not the VM's and that the kernel does not \
             bind to a CPU. 0 is what is promised; two numbers: at least and at most.",
        ),
        row(
            "Other devices' interrupts",
            sum(&totals.devices),
            String::new(),
            &totals.devices,
            "Interrupts of devices that are not the VM's, such as the host's disks and network cards. 0 is what is promised.",
        ),
        row(
            "Kernel upkeep: interrupts",
            sum(&totals.upkeep),
            String::new(),
            &totals.upkeep,
            "The CPUs' own interrupts, a few microseconds each at most; the kernel cannot do without them. LOC is the clock's tick, RES a \
             wake-up, CAL a call from another CPU, TLB a change of memory maps; on arm64 arch_timer is the tick, IPI0 a wake-up, IPI1 a call.",
        ),
        row(
            "Kernel upkeep: soft interrupts",
            sum(&totals.softirqs),
            String::new(),
            &totals.softirqs,
            "Work that the kernel does right after an interrupt: timers, RCU, its scheduler.",
        ),
        row(
            "Bound kernel threads",
            sum(&bound),
            duration(bound_ns),
            &bound,
            "Threads that the kernel has on every CPU and that nobody can move away.",
        ),
        row(
            "The VM's own threads",
            grouped(totals.own.count),
            duration(totals.own.ns),
            &none,
            "How often the VM's virtual CPUs began to run, and how long they ran.",
        ),
        row(
            "The VM's own interrupts",
            sum(&totals.own_interrupts),
            String::new(),
            &totals.own_interrupts,
            "Interrupts of devices that the VM has, and those that the processor delivers to it.",
        ),
        row(
            "Ready and not running",
            String::new(),
            duration(totals.delay_ns),
            &none,
            "How long the virtual CPUs could have run and did not: all that was lost to tasks is part of it, and waking up too.",
        ),
        row(
            "Steal",
            String::new(),
            duration(totals.steal_ns),
            &none,
            "Time that a hypervisor below this host took away; 0 on bare metal.",
        ),
    ];
    let amiss = [totals.other_tasks.most > 0, total(&totals.devices) > 0];
    for (row, amiss) in rows.iter_mut().zip(amiss) {
        row.amiss = amiss;
    }
    rows
}

fn by_count(names: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let mut names: Vec<(String, u64)> = names.iter().map(|(name, count)| (name.clone(), *count)).collect();
    names.retain(|(_, count)| *count > 0);
    names.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    names
}

/// "nvme0q3 12, eth0 1"; after the limit only the number of further names.
pub(super) fn listed(names: &[(String, u64)], most: usize) -> String {
    let shown = names.iter().take(most);
    let mut shown: Vec<String> = shown
        .map(|(name, count)| format!("{name} {}", grouped(*count)))
        .collect();
    if names.len() > most {
        shown.push(format!("{} more", names.len() - most));
    }
    shown.join(", ")
}

pub(super) fn total(names: &BTreeMap<String, u64>) -> u64 {
    names.values().fold(0, |all: u64, count| all.saturating_add(*count))
}

/// What matters, in one sentence or two.
pub(super) fn headline(account: &Account) -> String {
    let text = headline_of_vm(account);
    if account.is_container {
        owner::of_container(&text)
    } else {
        text
    }
}

fn headline_of_vm(account: &Account) -> String {
    if account.promised_us == 0 {
        return "The VM had no CPUs of its own in this time.".to_owned();
    }
    if account.covered_us == 0 {
        return "Nothing is known of this time: no reading covers it.".to_owned();
    }
    let totals = &account.totals;
    let tasks = match totals.other_tasks {
        Range { most: 0, .. } => "no other task ran on the VM's CPUs".to_owned(),
        Range { least, most } if least == most => {
            format!("other tasks began to run on the VM's CPUs {}", times(most))
        }
        Range { least: 0, most } => format!("other tasks began to run on the VM's CPUs at most {}", times(most)),
        both => format!(
            "other tasks began to run on the VM's CPUs between {} and {}",
            grouped(both.least),
            times(both.most)
        ),
    };
    let devices = match total(&totals.devices) {
        0 => "no interrupt of another device reached them".to_owned(),
        1 => "1 interrupt of another device reached them".to_owned(),
        count => format!("{} interrupts of other devices reached them", grouped(count)),
    };
    let rest = if account.covered_us >= account.promised_us {
        ""
    } else {
        "; of the rest nothing is claimed"
    };
    format!(
        "In what was read, {tasks}, and {devices}. {} of the time is covered{rest}.",
        covered(account.promised_us, account.covered_us)
    )
}

fn times(count: u64) -> String {
    match count {
        1 => "1 time".to_owned(),
        count => format!("{} times", grouped(count)),
    }
}

/// "0", "12", "3…7".
pub(super) fn range(range: Range) -> String {
    if range.least == range.most {
        grouped(range.most)
    } else {
        format!("{}…{}", grouped(range.least), grouped(range.most))
    }
}

/// The share in hundredths of a percent, rounded down: 100% is all of it. Empty where nothing was promised.
pub(super) fn covered(promised_us: u64, covered_us: u64) -> String {
    if promised_us == 0 {
        return String::new();
    }
    let parts = u128::from(covered_us.min(promised_us)) * 10_000 / u128::from(promised_us);
    match parts {
        10_000 => "100%".to_owned(),
        parts => format!("{}.{:02}%", parts / 100, parts % 100),
    }
}

/// 5,400,000,000.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Rounded up, so that what is a bound remains one.
pub(super) fn duration(ns: u64) -> String {
    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000_000;
    const SECOND: u64 = 1_000_000_000;
    let tenths = |unit: u64, name: &str| {
        let tenths = ns.div_ceil(unit / 10);
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    };
    match ns {
        0 => "0".to_owned(),
        1..MICRO => format!("{ns} ns"),
        MICRO..MILLI => tenths(MICRO, "µs"),
        MILLI..SECOND => tenths(MILLI, "ms"),
        ns if ns < 60 * SECOND => tenths(SECOND, "s"),
        ns => {
            let seconds = ns.div_ceil(SECOND);
            let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
            match seconds {
                0..3_600 => format!("{}min {}s", seconds / 60, seconds % 60),
                3_600..86_400 => format!("{}h {}min", minutes / 60, minutes % 60),
                _ => format!("{}d {}h", hours / 24, hours % 24),
            }
        }
    }
}

/// `2026-10-31 12:34:56`, UTC; empty for 0.
pub(super) fn clock(us: u64) -> String {
    located::clock(Some(us))
}

/// What a window is about.
pub(super) fn ran(window: &Window) -> String {
    match window.class {
        Class::OtherTasks => "other tasks".to_owned(),
        Class::Devices => format!("interrupt {}", window.name),
    }
}

pub(super) fn why(why: Closed) -> &'static str {
    match why {
        Closed::Ended => "the VM, or this virtual CPU, ended",
        Closed::Moved => "the virtual CPU moved to another CPU",
        Closed::NotIsolated => "the VM was neither isolated nor pinned",
        Closed::Offline => "a CPU was offline",
        Closed::Contradicted => "the counters contradicted each other: a thread of the VM ran elsewhere",
        Closed::Boot => "the host booted",
        Closed::NotRead => "the VM was not read yet",
        Closed::NotKept => "what was read could not be kept",
        Closed::TooManyTasks => "the container had more tasks or cgroups than are read",
        Closed::Restarted => {
            "the daemon was restarted, and which of the container's tasks ended meanwhile is not known"
        }
    }
}

/// The day with most of other tasks and devices; `None` where each had none.
pub(super) fn worst_day(days: &[Day]) -> Option<&Day> {
    let sum = |day: &&Day| day.other_tasks.most.saturating_add(day.devices);
    // The first of equals.
    days.iter().rev().filter(|day| sum(day) > 0).max_by_key(sum)
}

/// Who ran, over all CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRow {
    pub what: &'static str,
    pub name: String,
    pub cpus: CpuSet,
    pub count: u64,
    pub ns: Option<u64>,
    pub estimated: bool,
}

impl RunRow {
    pub(super) fn ran(&self) -> String {
        match (self.ns, self.estimated) {
            (None, _) => String::new(),
            (Some(ns), true) => format!("about {}", duration(ns)),
            (Some(ns), false) => duration(ns),
        }
    }
}

/// By kind; within a kind those first that ran longest, then those that ran most often.
pub(super) fn who(attribution: &Attribution) -> Vec<RunRow> {
    let kinds = [
        ("task", &attribution.tasks),
        ("interrupt", &attribution.interrupts),
        ("soft interrupt", &attribution.softirqs),
        ("kernel upkeep", &attribution.vectors),
    ];
    let each = kinds.into_iter().flat_map(|(what, occupants)| {
        let mut all = merged(what, occupants);
        all.sort_by(|a, b| (b.ns, b.count).cmp(&(a.ns, a.count)).then_with(|| a.name.cmp(&b.name)));
        all
    });
    each.collect()
}

fn merged(what: &'static str, occupants: &[Occupant]) -> Vec<RunRow> {
    let mut by_name: BTreeMap<&str, RunRow> = BTreeMap::new();
    for occupant in occupants {
        let one = by_name.entry(&occupant.name).or_insert_with(|| RunRow {
            what,
            name: occupant.name.clone(),
            cpus: CpuSet::new(),
            count: 0,
            ns: None,
            estimated: false,
        });
        // No kernel has more; a list of CPUs is as long as its last one.
        if occupant.cpu < 1 << 16 {
            one.cpus.insert(occupant.cpu);
        }
        one.count = one.count.saturating_add(occupant.count);
        one.ns = match (one.ns, occupant.ns) {
            (None, ns) | (ns, None) => ns,
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
        };
        one.estimated |= occupant.estimated;
    }
    by_name.into_values().collect()
}

/// The text for an attribution without any row. An incomplete one proves nothing.
pub(super) fn no_rows(incomplete: &[String]) -> &'static str {
    if incomplete.is_empty() {
        "Nothing but the VM's own."
    } else {
        "Not known."
    }
}

/// Why an attribution is not the whole truth; empty where it is.
pub(super) fn incomplete(attribution: &Attribution) -> Vec<String> {
    let dropped = match attribution.dropped {
        0 => None,
        count => Some(format!(
            "incomplete: the kernel had no room to count {} events",
            grouped(count)
        )),
    };
    dropped
        .into_iter()
        .chain(attribution.problems.iter().cloned())
        .collect()
}
