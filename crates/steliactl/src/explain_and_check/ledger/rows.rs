//! The facts of an account as rows, and their columns: the text and the page are made of these alone.

use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::CpuSet;
use stelia_ledger::account::{Account, Day, Gap, LocatedTime, Range, Totals, Window};
use stelia_ledger::entry::{Class, Closed};

use super::account::VmAccount;
use crate::shared::located;
use crate::shared::output::{Column, Grid, Meaning, column, counted};

/// Names of a class that are printed; the others are counted.
const NAMES: usize = 6;
/// Rows of one attribution within an account.
const DOERS: usize = 12;

pub(crate) const ALL: [Column<VmAccount>; 7] = [
    column("VM", |one: &VmAccount| one.pod.to_string()).yields(1).shortens(),
    column("POD UID", |one: &VmAccount| one.pod.pod_uid.clone()).wide(),
    column("COVERED", |one: &VmAccount| {
        covered(one.account.promised_us, one.account.covered_us)
    })
    .right(),
    column("OTHER TASKS", |one: &VmAccount| range(one.account.totals.other_tasks))
        .right()
        .means(|one| zero(one.account.totals.other_tasks.most)),
    column("OTHER DEVICES", |one: &VmAccount| {
        grouped(total(&one.account.totals.devices))
    })
    .right()
    .means(|one| zero(total(&one.account.totals.devices))),
    column("LOST AT MOST", |one: &VmAccount| duration(one.account.totals.delay_ns)).right(),
    column("WORST DAY", |one: &VmAccount| {
        worst_day(&one.account.days)
            .map(|day| day.day.clone())
            .unwrap_or_default()
    }),
];

pub(crate) const CLASSES: [Column<Row>; 4] = [
    column("WHAT", |row: &Row| row.what.to_owned()),
    column("COUNT", |row: &Row| row.count.clone())
        .right()
        .means(Row::meaning),
    column("TIME", |row: &Row| row.time.clone()).right(),
    column("OF WHICH", Row::listed).yields(1).or_nothing(),
];

pub(crate) const LOCATED: [Column<LocatedTime>; 5] = [
    column("PART", |time: &LocatedTime| located::part(&time.located)).yields(1),
    column("NUMA NODES", |time: &LocatedTime| located::nodes(&time.located)).yields(2),
    column("PLACE", |time: &LocatedTime| located::place(&time.located))
        .yields(3)
        .means(|time| located::meaning(&time.located)),
    column("SINCE", |time: &LocatedTime| clock(time.located.since_us)),
    column("UNTIL", |time: &LocatedTime| clock(time.until_us)).or_nothing(),
];

pub(crate) const DAYS: [Column<Day>; 5] = [
    column("DAY", |day: &Day| day.day.clone()),
    column("COVERED", |day: &Day| covered(day.promised_us, day.covered_us)).right(),
    column("OTHER TASKS", |day: &Day| range(day.other_tasks))
        .right()
        .means(|day| zero(day.other_tasks.most)),
    column("OTHER DEVICES", |day: &Day| grouped(day.devices))
        .right()
        .means(|day| zero(day.devices)),
    column("LOST AT MOST", |day: &Day| duration(day.delay_ns)).right(),
];

pub(crate) const WINDOWS: [Column<Window>; 6] = [
    column("FROM", |window: &Window| clock(window.from_us)),
    column("FOR", |window: &Window| lasted(window.from_us, window.until_us)).right(),
    column("CPUS", |window: &Window| window.cpus.clone()).yields(1),
    column("WHAT", |window: &Window| match window.class {
        Class::OtherTasks => "other tasks".to_owned(),
        Class::Devices => format!("interrupt {}", window.name),
    })
    .yields(2),
    column("COUNT", |window: &Window| range(window.count))
        .right()
        .means(|window| zero(window.count.most)),
    column("LOST AT MOST", |window: &Window| match window.delay_ns {
        0 => String::new(),
        ns => duration(ns),
    })
    .right(),
];

pub(crate) const GAPS: [Column<Gap>; 4] = [
    column("FROM", |gap: &Gap| clock(gap.from_us)),
    column("FOR", |gap: &Gap| lasted(gap.from_us, gap.until_us)).right(),
    column("CPUS", |gap: &Gap| gap.cpus.clone()).yields(1),
    column("WHY", |gap: &Gap| why(gap.why).to_owned()).wraps(),
];

pub(crate) const RAN: [Column<RunRow>; 5] = [
    column("WHAT", |who: &RunRow| who.what.to_owned()),
    column("NAME", |who: &RunRow| who.name.clone()).yields(1),
    column("CPUS", |who: &RunRow| who.cpus.to_string()).yields(2),
    column("COUNT", |who: &RunRow| grouped(who.count)).right(),
    column("RAN", |who: &RunRow| match (who.ns, who.estimated) {
        (None, _) => String::new(),
        (Some(ns), true) => format!("about {}", duration(ns)),
        (Some(ns), false) => duration(ns),
    })
    .right(),
];

fn zero(count: u64) -> Meaning {
    match count {
        0 => Meaning::Good,
        _ => Meaning::Attention,
    }
}

/// A part of an account: a table with its title.
pub(super) struct Section {
    pub title: String,
    /// For somebody who pays for the CPUs.
    pub about: String,
    pub grid: Grid,
    /// What the table does not have.
    pub missing: Vec<String>,
}

impl Section {
    fn of<'a, T: 'a>(
        title: impl Into<String>,
        about: &str,
        columns: &[Column<T>],
        rows: impl IntoIterator<Item = &'a T>,
    ) -> Self {
        Self {
            title: title.into(),
            about: about.to_owned(),
            grid: Grid::of(columns, rows),
            missing: Vec::new(),
        }
    }
}

pub(super) fn days(account: &Account) -> Section {
    Section::of("By day", "", &DAYS, &account.days)
}

/// What an account has beside its classes and its days.
pub(super) fn sections(account: &Account) -> Vec<Section> {
    let mut gaps = Section::of(
        "Times that are not covered",
        "The guaranteed time for which there are no two readings of the same counters.",
        &GAPS,
        &account.gaps,
    );
    if account.gaps_left_out > 0 {
        gaps.missing
            .push(format!("And {} more.", counted(account.gaps_left_out, "gap")));
    }
    let mut sections = vec![
        Section::of(
            "The worst windows",
            "A window is the time from one reading of the counters to the next.",
            &WINDOWS,
            &account.worst,
        ),
        gaps,
        Section::of(
            "NUMA nodes of CPUs, memory and devices",
            "Near: on a NUMA node of these CPUs. Attached: on a node without CPUs that belongs to one of these, or to a device. Remote: on any \
             other node. Read once an hour, or less often on nodes with many VMs, and when the CPUs change.",
            &LOCATED,
            &account.located,
        ),
    ];
    sections.extend(account.attributions.iter().map(ran));
    sections
}

/// Who ran during one attribution, and why that may not be all.
pub(super) fn ran(one: &Attribution) -> Section {
    let mut rows = who(one);
    rows.truncate(DOERS);
    let title = format!("Who ran on CPUs {}, {}", one.cpus, between(one.from_us, one.until_us));
    let mut section = Section::of(title, "", &RAN, &rows);
    if one.dropped > 0 {
        let dropped = format!(
            "Incomplete: the kernel had no room to count {} events.",
            grouped(one.dropped)
        );
        section.missing.push(dropped);
    }
    let problems = one.problems.iter().map(|problem| format!("Problem: {problem}"));
    section.missing.extend(problems);
    if rows.is_empty() {
        // An incomplete one proves nothing.
        let nothing = if section.missing.is_empty() {
            "Nothing else ran."
        } else {
            "Unknown."
        };
        section.missing.insert(0, nothing.to_owned());
    }
    section
}

/// A class of what ran, with its sums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub what: &'static str,
    /// Empty where it is not counted.
    pub count: String,
    /// Empty where it is not measured.
    pub time: String,
    /// By name, the most frequent first.
    pub names: Vec<(String, u64)>,
    /// What it is, for somebody who pays for the CPUs.
    pub about: &'static str,
    /// Whether 0 of it is guaranteed, and it is not 0.
    pub is_broken: bool,
}

impl Row {
    fn meaning(&self) -> Meaning {
        match (self.is_broken, self.count.as_str()) {
            (true, _) => Meaning::Attention,
            (false, "0") => Meaning::Good,
            _ => Meaning::Plain,
        }
    }

    /// "nvme0q3 12, eth0 1"; after the limit only the number of further names.
    pub(super) fn listed(&self) -> String {
        let shown = self.names.iter().take(NAMES);
        let mut shown: Vec<String> = shown
            .map(|(name, count)| format!("{name} {}", grouped(*count)))
            .collect();
        if self.names.len() > NAMES {
            shown.push(format!("{} more", self.names.len() - NAMES));
        }
        shown.join(", ")
    }
}

/// The classes in the order in which a customer asks for them.
pub(super) fn classes(totals: &Totals) -> Vec<Row> {
    let row = |what, about| Row {
        what,
        about,
        ..Row::default()
    };
    let named = |what, names: &BTreeMap<String, u64>, about| {
        let mut rows: Vec<(String, u64)> = names.iter().map(|(name, count)| (name.clone(), *count)).collect();
        rows.retain(|(_, count)| *count > 0);
        rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Row {
            count: grouped(total(names)),
            names: rows,
            ..row(what, about)
        }
    };
    let bound = totals.kernel_threads.iter();
    let bound: BTreeMap<String, u64> = bound.map(|(name, ran)| (name.clone(), ran.count)).collect();
    let bound_ns = totals
        .kernel_threads
        .values()
        .fold(0, |all: u64, ran| all.saturating_add(ran.ns));
    let devices = named(
        "Other devices' interrupts",
        &totals.devices,
        "Interrupts of devices that were not assigned to it, such as the host's disks and network cards. Guaranteed: 0.",
    );
    vec![
        Row {
            count: range(totals.other_tasks),
            is_broken: totals.other_tasks.most > 0,
            ..row(
                "Other tasks",
                "How often a program, or a kernel thread that can be moved, began to run on its CPUs. Guaranteed: 0. Two numbers are the least \
                 and the most.",
            )
        },
        Row {
            is_broken: total(&totals.devices) > 0,
            ..devices
        },
        named(
            "Kernel interrupts",
            &totals.upkeep,
            "The CPUs' own interrupts, a few microseconds each at most. LOC is the clock's tick, RES a wake-up, CAL a call from another CPU, TLB \
             a change of memory maps; on arm64 arch_timer is the tick, IPI0 a wake-up, IPI1 a call.",
        ),
        named(
            "Kernel soft interrupts",
            &totals.softirqs,
            "Work of the kernel right after an interrupt: timers, RCU, its scheduler.",
        ),
        Row {
            time: duration(bound_ns),
            ..named(
                "Bound kernel threads",
                &bound,
                "Threads that the kernel has on every CPU and that nobody can move away.",
            )
        },
        Row {
            count: grouped(totals.own.count),
            time: duration(totals.own.ns),
            ..row(
                "Own threads",
                "How often its own threads began to run, and how long they ran.",
            )
        },
        named(
            "Own interrupts",
            &totals.own_interrupts,
            "Interrupts of its own devices, and those that the processor delivers to it directly.",
        ),
        Row {
            time: duration(totals.delay_ns),
            ..row(
                "Ready, not running",
                "How long its own threads could have run and did not: everything lost to other tasks, and waking up too.",
            )
        },
        Row {
            time: duration(totals.steal_ns),
            ..row(
                "Steal",
                "Time that a hypervisor below this host took away; 0 on bare metal.",
            )
        },
    ]
}

pub(super) fn total(names: &BTreeMap<String, u64>) -> u64 {
    names.values().fold(0, |all: u64, count| all.saturating_add(*count))
}

/// What matters, in one or two sentences.
pub(super) fn headline(account: &Account) -> String {
    if account.promised_us == 0 {
        return "It had no CPUs of its own in this period.".to_owned();
    }
    if account.covered_us == 0 {
        return "Nothing is known: no reading covers this period.".to_owned();
    }
    let times = |range: Range| match self::range(range).as_str() {
        "1" => "once".to_owned(),
        count => format!("{count} times"),
    };
    let tasks = match account.totals.other_tasks {
        Range { most: 0, .. } => "No other task ran on its CPUs".to_owned(),
        count => format!("Other tasks began to run on its CPUs {}", times(count)),
    };
    let devices = match total(&account.totals.devices) {
        0 => "no interrupt of another device reached them".to_owned(),
        count => format!("interrupts of other devices reached them {}", times(exactly(count))),
    };
    let rest = if account.covered_us >= account.promised_us {
        ""
    } else {
        "; nothing is known of the rest"
    };
    let covered = covered(account.promised_us, account.covered_us);
    format!("{tasks}; {devices}. {covered} of the guaranteed time is covered{rest}.")
}

fn exactly(count: u64) -> Range {
    Range {
        least: count,
        most: count,
    }
}

/// "0", "12", "3–7".
pub(super) fn range(range: Range) -> String {
    if range.least == range.most {
        grouped(range.most)
    } else {
        format!("{}–{}", grouped(range.least), grouped(range.most))
    }
}

/// The share in hundredths of a percent, rounded down: 100% is all of it. Empty where nothing is guaranteed.
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
    let seconds = ns.div_ceil(SECOND);
    let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
    match ns {
        0 => "0".to_owned(),
        1..MICRO => format!("{ns} ns"),
        MICRO..MILLI => tenths(MICRO, "µs"),
        MILLI..SECOND => tenths(MILLI, "ms"),
        _ if ns < 60 * SECOND => tenths(SECOND, "s"),
        _ if seconds < 3_600 => format!("{}min {}s", seconds / 60, seconds % 60),
        _ if seconds < 86_400 => format!("{}h {}min", minutes / 60, minutes % 60),
        _ => format!("{}d {}h", hours / 24, hours % 24),
    }
}

/// How long it lasted, in whole seconds where it is long.
fn lasted(from_us: u64, until_us: u64) -> String {
    duration(until_us.saturating_sub(from_us).saturating_mul(1_000)).replace(".0 ", " ")
}

/// `2026-10-31 12:34:56`, UTC; empty for 0.
pub(super) fn clock(us: u64) -> String {
    located::clock(Some(us))
}

/// From when until when; the beginning may be that of the ledger files, which is not known.
pub(super) fn between(from_us: u64, until_us: u64) -> String {
    let until = match until_us {
        0 => "now".to_owned(),
        us => clock(us),
    };
    match from_us {
        0 => format!("until {until}"),
        us => format!("{} to {until}", clock(us)),
    }
}

fn why(why: Closed) -> &'static str {
    match why {
        Closed::Ended => "its threads ended",
        Closed::Moved => "its threads moved to other CPUs",
        Closed::NotIsolated => "it was neither isolated nor pinned",
        Closed::Offline => "a CPU was offline",
        Closed::Contradicted => "counters contradicted each other: an own thread ran elsewhere",
        Closed::Boot => "the host booted",
        Closed::NotRead => "not read yet",
        Closed::NotKept => "the reading could not be stored",
        Closed::TooManyTasks => "it had more tasks or cgroups than are read",
        Closed::Restarted => "steliad restarted and does not know which tasks ended meanwhile",
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
    what: &'static str,
    name: String,
    cpus: CpuSet,
    count: u64,
    ns: Option<u64>,
    estimated: bool,
}

/// By kind; within a kind those first that ran longest, then those that ran most often.
fn who(attribution: &Attribution) -> Vec<RunRow> {
    let kinds = [
        ("task", &attribution.tasks),
        ("interrupt", &attribution.interrupts),
        ("soft interrupt", &attribution.softirqs),
        ("kernel interrupt", &attribution.vectors),
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
