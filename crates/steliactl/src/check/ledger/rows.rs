//! The facts of an account as rows, and their columns: the text and the page are made of these alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::CpuSet;
use stelia_ledger::account::{Account, Day, Gap, LocatedTime, Range, Totals, Window, grouped, share, total};
use stelia_ledger::entry::{Class, Closed};

use super::account::VmAccount;
use crate::shared::located;
use crate::shared::output::{Column, Grid, Meaning, column, counted};

/// Names of a class that are printed; the others are counted.
const NAMES: usize = 6;
/// Rows of one attribution within an account.
const DOERS: usize = 12;

pub(super) const ALL: [Column<VmAccount>; 7] = [
    column("VM", |one: &VmAccount| one.pod.to_string()).yields(1).shortens(),
    column("POD UID", |one: &VmAccount| one.pod.pod_uid.clone()).wide(),
    column("COVERED", |VmAccount { account, .. }: &VmAccount| {
        share(account.promised_us, account.covered_us)
    })
    .right(),
    column("OTHER TASKS", |one: &VmAccount| {
        one.account.totals.other_tasks.to_string()
    })
    .right()
    .means(|one| zero(one.account.totals.other_tasks.most)),
    column("OTHER DEVICES", |one: &VmAccount| {
        grouped(total(&one.account.totals.devices))
    })
    .right()
    .means(|one| zero(total(&one.account.totals.devices))),
    column("LOST AT MOST", |one: &VmAccount| duration(one.account.totals.delay_ns)).right(),
    column("WORST DAY", |one: &VmAccount| {
        worst_day(&one.account.days).map_or_else(String::new, |day| day.day.clone())
    }),
];

pub(super) const CLASSES: [Column<Row>; 4] = [
    column("WHAT", |row: &Row| row.what.to_owned()),
    column("COUNT", |row: &Row| {
        row.count.map_or_else(String::new, |count| count.to_string())
    })
    .right()
    .means(|row| match row.count {
        Some(Range { most: 0, .. }) => Meaning::Good,
        Some(_) if row.is_guaranteed => Meaning::Attention,
        _ => Meaning::Plain,
    }),
    column("TIME", |row: &Row| row.ns.map(duration).unwrap_or_default()).right(),
    column("OF WHICH", |row: &Row| row.names.clone()).yields(1).or_nothing(),
];

pub(super) const LOCATED: [Column<LocatedTime>; 5] = [
    column("PART", |time: &LocatedTime| located::part(&time.located)).yields(1),
    column("NUMA", |time: &LocatedTime| located::nodes(&time.located)).yields(2),
    column("PLACE", |time: &LocatedTime| located::place(&time.located))
        .yields(3)
        .means(|time| located::meaning(&time.located)),
    column("SINCE", |time: &LocatedTime| clock(time.located.since_us)),
    column("UNTIL", |time: &LocatedTime| clock(time.until_us))
        .wide()
        .or_nothing(),
];

pub(super) const DAYS: [Column<Day>; 5] = [
    column("DAY", |day: &Day| day.day.clone()),
    column("COVERED", |day: &Day| share(day.promised_us, day.covered_us)).right(),
    column("OTHER TASKS", |day: &Day| day.other_tasks.to_string())
        .right()
        .means(|day| zero(day.other_tasks.most)),
    column("OTHER DEVICES", |day: &Day| grouped(day.devices))
        .right()
        .means(|day| zero(day.devices)),
    column("LOST AT MOST", |day: &Day| duration(day.delay_ns)).right(),
];

pub(super) const WINDOWS: [Column<Window>; 6] = [
    column("FROM", |window: &Window| clock(window.from_us)),
    column("FOR", |window: &Window| lasted(window.from_us, window.until_us)).right(),
    column("CPUS", |window: &Window| window.cpus.clone()).yields(1),
    column("WHAT", |window: &Window| match window.class {
        Class::OtherTasks => "other tasks".to_owned(),
        Class::Devices => format!("interrupt {}", window.name),
    })
    .yields(2),
    column("COUNT", |window: &Window| window.count.to_string())
        .right()
        .means(|window| zero(window.count.most)),
    column("LOST AT MOST", |window: &Window| match window.delay_ns {
        0 => String::new(),
        ns => duration(ns),
    })
    .right(),
];

pub(super) const GAPS: [Column<Gap>; 4] = [
    column("FROM", |gap: &Gap| clock(gap.from_us)),
    column("FOR", |gap: &Gap| lasted(gap.from_us, gap.until_us)).right(),
    column("CPUS", |gap: &Gap| gap.cpus.clone()).yields(1),
    column("WHY", |gap: &Gap| why(gap.why).to_owned()).wraps(),
];

pub(super) const RAN: [Column<RunRow>; 5] = [
    column("WHAT", |who: &RunRow| who.what.to_owned()),
    column("NAME", |who: &RunRow| who.name.clone()).yields(1),
    column("CPUS", |who: &RunRow| who.cpus.to_string()).yields(2),
    column("COUNT", |who: &RunRow| grouped(who.count)).right(),
    column("RAN", |who: &RunRow| match (who.ns.map(duration), who.estimated) {
        (Some(time), true) => format!("about {time}"),
        (time, _) => time.unwrap_or_default(),
    })
    .right(),
];

fn zero(count: u64) -> Meaning {
    if count == 0 { Meaning::Good } else { Meaning::Attention }
}

/// A part of an account: a table with its title.
pub(super) struct Section {
    pub title: String,
    /// For somebody who pays for the CPUs.
    pub about: &'static str,
    pub grid: Grid,
    /// What the table does not have.
    pub missing: Vec<String>,
}

impl Section {
    fn of<'a, T: 'a>(
        title: impl Into<String>,
        about: &'static str,
        columns: &[Column<T>],
        rows: impl IntoIterator<Item = &'a T>,
    ) -> Self {
        Self {
            title: title.into(),
            about,
            grid: Grid::of(columns, rows),
            missing: Vec::new(),
        }
    }
}

/// The tables of an account, first that of the classes, whose rows the page explains.
pub(super) fn sections(account: &Account, has_days: bool) -> Vec<Section> {
    let mut all = vec![Section::of(
        "Everything that was counted",
        "",
        &CLASSES,
        &classes(&account.totals),
    )];
    if has_days {
        all.push(Section::of("By day", "", &DAYS, &account.days));
    }
    let about = "A window is the time from one reading of the counters to the next.";
    all.push(Section::of("The worst windows", about, &WINDOWS, &account.worst));
    let about = "The guaranteed time for which there are no two readings of the same counters.";
    let mut gaps = Section::of("Times that are not covered", about, &GAPS, &account.gaps);
    if account.gaps_left_out > 0 {
        let more = counted(account.gaps_left_out, "more gap");
        gaps.missing.push(format!("{more} not listed."));
    }
    all.push(gaps);
    let about = "Near: on a NUMA node of these CPUs. Attached: on a node without CPUs that belongs to one of these, or to a device. Remote: on \
                 any other node. Read once an hour, or less often on nodes with many VMs, and when the CPUs change.";
    let title = "NUMA nodes of CPUs, memory and devices";
    all.push(Section::of(title, about, &LOCATED, &account.located));
    all.extend(account.attributions.iter().map(ran));
    all
}

/// Who ran during one attribution, and why that may not be all.
pub(super) fn ran(one: &Attribution) -> Section {
    let mut rows = who(one);
    rows.truncate(DOERS);
    let title = format!("Who ran on CPUs {}, {}", one.cpus, between(one.from_us, one.until_us));
    let mut section = Section::of(title, "", &RAN, &rows);
    let dropped = (one.dropped > 0).then(|| {
        let dropped = grouped(one.dropped);
        format!("Incomplete: the kernel had no room to count {dropped} events.")
    });
    let problems = one.problems.iter().map(|problem| format!("Problem: {problem}"));
    section.missing = dropped.into_iter().chain(problems).collect();
    // An incomplete one proves nothing.
    match (rows.is_empty(), section.missing.is_empty()) {
        (true, true) => section.missing.push("Nothing else ran.".to_owned()),
        (true, false) => section.missing.insert(0, "Unknown.".to_owned()),
        (false, _) => {}
    }
    section
}

/// A class of what ran, with its sums; what each is is explained in the page.
#[derive(Debug, Default)]
pub(super) struct Row {
    what: &'static str,
    /// `None`: not counted.
    count: Option<Range>,
    /// `None`: not measured.
    ns: Option<u64>,
    names: String,
    /// Whether 0 is guaranteed.
    is_guaranteed: bool,
}

/// The classes in the order in which a customer asks for them.
fn classes(totals: &Totals) -> [Row; 9] {
    let exactly = |count| {
        Some(Range {
            least: count,
            most: count,
        })
    };
    let row = |what, count, ns| Row {
        what,
        count,
        ns,
        ..Row::default()
    };
    let named = |what, names: &BTreeMap<String, u64>| Row {
        names: listed(names),
        ..row(what, exactly(total(names)), None)
    };
    let bound = totals.kernel_threads.iter();
    let bound = bound.map(|(name, ran)| (name.clone(), ran.count)).collect();
    let ran = totals.kernel_threads.values();
    let bound_ns = ran.fold(0, |all: u64, ran| all.saturating_add(ran.ns));
    [
        Row {
            is_guaranteed: true,
            ..row("Other tasks", Some(totals.other_tasks), None)
        },
        Row {
            is_guaranteed: true,
            ..named("Other devices' interrupts", &totals.devices)
        },
        named("Kernel interrupts", &totals.upkeep),
        named("Kernel soft interrupts", &totals.softirqs),
        Row {
            ns: Some(bound_ns),
            ..named("Bound kernel threads", &bound)
        },
        row("Own threads", exactly(totals.own.count), Some(totals.own.ns)),
        named("Own interrupts", &totals.own_interrupts),
        row("Ready, not running", None, Some(totals.delay_ns)),
        row("Steal", None, Some(totals.steal_ns)),
    ]
}

/// "nvme0q3 12, eth0 1", the most frequent first; after the limit only the number of further names.
fn listed(names: &BTreeMap<String, u64>) -> String {
    let mut names: Vec<(&String, &u64)> = names.iter().filter(|(_, count)| **count > 0).collect();
    names.sort_by_key(|(_, count)| Reverse(*count));
    let shown = names.iter().take(NAMES);
    let shown = shown.map(|(name, count)| format!("{name} {}", grouped(**count)));
    let more = names.len().saturating_sub(NAMES);
    let more = (more > 0).then(|| format!("{more} more"));
    shown.chain(more).collect::<Vec<_>>().join(", ")
}

/// Whether something ran that is guaranteed not to. A lower bound of 0 proves nothing.
pub(super) fn is_broken(account: &Account) -> bool {
    account.totals.other_tasks.least > 0 || total(&account.totals.devices) > 0
}

/// Whether the guarantee was kept, as the class of the page's headline and in words.
pub(super) fn guarantee(account: &Account) -> (&'static str, String) {
    let (tasks, devices) = (account.totals.other_tasks, total(&account.totals.devices));
    let (look, word) = match (account.promised_us, account.covered_us) {
        (0, _) => return ("unknown", "none, it had no CPUs of its own in this period".to_owned()),
        (_, 0) => return ("unknown", "not known, no reading covers this period".to_owned()),
        _ if is_broken(account) => ("some", "broken"),
        _ if tasks.most > 0 => ("some", "perhaps broken"),
        _ => ("zero", "kept"),
    };
    (look, format!("{word}, {}", counts(tasks, devices)))
}

/// What else matters of an account.
pub(super) fn facts(account: &Account) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if account.promised_us > 0 {
        let rest = if account.covered_us < account.promised_us {
            ", nothing is known of the rest"
        } else {
            ""
        };
        let covered = share(account.promised_us, account.covered_us);
        facts.push(("Covered", format!("{covered} of the guaranteed time{rest}")));
    }
    if let Some(day) = worst_day(&account.days) {
        facts.push((
            "Worst day",
            format!("{}, {}", day.day, counts(day.other_tasks, day.devices)),
        ));
    }
    facts
}

/// "other tasks 3–7, other devices' interrupts 12".
pub(super) fn counts(other_tasks: Range, devices: u64) -> String {
    format!(
        "other tasks {other_tasks}, other devices' interrupts {}",
        grouped(devices)
    )
}

/// Rounded up, so that what is a bound remains one.
pub(super) fn duration(ns: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "µs"),
    ];
    match UNITS.iter().find(|(unit, _)| ns >= *unit) {
        Some((unit, name)) => {
            let tenths = ns.div_ceil(unit / 10);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None if ns > 0 => format!("{ns} ns"),
        None => "0".to_owned(),
    }
}

fn lasted(from_us: u64, until_us: u64) -> String {
    duration(until_us.saturating_sub(from_us).saturating_mul(1_000))
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
#[derive(Debug, Default)]
pub(super) struct RunRow {
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
        let mut by_name: BTreeMap<&str, RunRow> = BTreeMap::new();
        for occupant in occupants {
            by_name.entry(&occupant.name).or_default().add(what, occupant);
        }
        let mut all: Vec<RunRow> = by_name.into_values().collect();
        all.sort_by_key(|row| Reverse((row.ns, row.count)));
        all
    });
    each.collect()
}

impl RunRow {
    fn add(&mut self, what: &'static str, occupant: &Occupant) {
        self.what = what;
        self.name.clone_from(&occupant.name);
        // No kernel has more; a list of CPUs is as long as its last one.
        if occupant.cpu < 1 << 16 {
            self.cpus.insert(occupant.cpu);
        }
        self.count = self.count.saturating_add(occupant.count);
        if let Some(ns) = occupant.ns {
            self.ns = Some(ns.saturating_add(self.ns.unwrap_or(0)));
        }
        self.estimated |= occupant.estimated;
    }
}
