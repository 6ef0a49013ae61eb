//! The facts of an account as rows, and their columns: the text and the page are made of these alone.

use std::cmp::Reverse;
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
    column("COUNT", |row: &Row| row.count.map(range).unwrap_or_default())
        .right()
        .means(Row::meaning),
    column("TIME", |row: &Row| row.ns.map(duration).unwrap_or_default()).right(),
    column("OF WHICH", Row::listed).yields(1).or_nothing(),
];

pub(crate) const LOCATED: [Column<LocatedTime>; 5] = [
    column("PART", |time: &LocatedTime| located::part(&time.located)).yields(1),
    column("NUMA NODES", |time: &LocatedTime| located::nodes(&time.located)).yields(2),
    column("PLACE", |time: &LocatedTime| located::place(&time.located))
        .yields(3)
        .means(|time| located::meaning(&time.located)),
    column("SINCE", |time: &LocatedTime| clock(time.located.since_us)),
    column("UNTIL", |time: &LocatedTime| clock(time.until_us))
        .wide()
        .or_nothing(),
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
        let (title, about, missing) = (title.into(), about.to_owned(), Vec::new());
        let grid = Grid::of(columns, rows);
        Self {
            title,
            about,
            grid,
            missing,
        }
    }
}

/// The tables of an account, first that of the classes, whose rows the page explains.
pub(super) fn sections(account: &Account, has_days: bool) -> Vec<Section> {
    let classes = Section::of("Everything that was counted", "", &CLASSES, &classes(&account.totals));
    let days = has_days.then(|| Section::of("By day", "", &DAYS, &account.days));
    let about = "A window is the time from one reading of the counters to the next.";
    let windows = Section::of("The worst windows", about, &WINDOWS, &account.worst);
    let about = "The guaranteed time for which there are no two readings of the same counters.";
    let mut gaps = Section::of("Times that are not covered", about, &GAPS, &account.gaps);
    if account.gaps_left_out > 0 {
        let more = counted(account.gaps_left_out, "more gap");
        gaps.missing.push(format!("{more} not listed."));
    }
    let about = "Near: on a NUMA node of these CPUs. Attached: on a node without CPUs that belongs to one of these, or to a device. Remote: on \
                 any other node. Read once an hour, or less often on nodes with many VMs, and when the CPUs change.";
    let located = Section::of(
        "NUMA nodes of CPUs, memory and devices",
        about,
        &LOCATED,
        &account.located,
    );
    let attributions = account.attributions.iter().map(ran);
    let first = [classes].into_iter().chain(days);
    first.chain([windows, gaps, located]).chain(attributions).collect()
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

/// A class of what ran, with its sums; what each is is explained in the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    what: &'static str,
    /// `None`: not counted.
    count: Option<Range>,
    /// `None`: not measured.
    ns: Option<u64>,
    names: BTreeMap<String, u64>,
}

impl Row {
    /// 0 is guaranteed of the first classes; 0 of any is good.
    fn meaning(&self) -> Meaning {
        match self.count {
            Some(Range { most: 0, .. }) => Meaning::Good,
            Some(_) if [OTHER_TASKS, OTHER_DEVICES].contains(&self.what) => Meaning::Attention,
            _ => Meaning::Plain,
        }
    }

    /// "nvme0q3 12, eth0 1", the most frequent first; after the limit only the number of further names.
    fn listed(&self) -> String {
        let mut names: Vec<(&String, &u64)> = self.names.iter().filter(|(_, count)| **count > 0).collect();
        names.sort_by_key(|(_, count)| Reverse(*count));
        let shown = names
            .iter()
            .take(NAMES)
            .map(|(name, count)| format!("{name} {}", grouped(**count)));
        let more = names.len().saturating_sub(NAMES);
        let more = (more > 0).then(|| format!("{more} more"));
        shown.chain(more).collect::<Vec<_>>().join(", ")
    }
}

const OTHER_TASKS: &str = "Other tasks";
const OTHER_DEVICES: &str = "Other devices' interrupts";

/// The classes in the order in which a customer asks for them.
fn classes(totals: &Totals) -> Vec<Row> {
    let row = |what, count, ns, names| Row { what, count, ns, names };
    let named = |what, names: &BTreeMap<String, u64>| row(what, Some(exactly(total(names))), None, names.clone());
    let unnamed = |what, count, ns| row(what, count, ns, BTreeMap::new());
    let bound = totals
        .kernel_threads
        .iter()
        .map(|(name, ran)| (name.clone(), ran.count));
    let bound_ns = totals
        .kernel_threads
        .values()
        .fold(0, |all: u64, ran| all.saturating_add(ran.ns));
    vec![
        unnamed(OTHER_TASKS, Some(totals.other_tasks), None),
        named(OTHER_DEVICES, &totals.devices),
        named("Kernel interrupts", &totals.upkeep),
        named("Kernel soft interrupts", &totals.softirqs),
        Row {
            ns: Some(bound_ns),
            ..named("Bound kernel threads", &bound.collect())
        },
        unnamed("Own threads", Some(exactly(totals.own.count)), Some(totals.own.ns)),
        named("Own interrupts", &totals.own_interrupts),
        unnamed("Ready, not running", None, Some(totals.delay_ns)),
        unnamed("Steal", None, Some(totals.steal_ns)),
    ]
}

fn exactly(count: u64) -> Range {
    Range {
        least: count,
        most: count,
    }
}

pub(super) fn total(names: &BTreeMap<String, u64>) -> u64 {
    names.values().fold(0, |all: u64, count| all.saturating_add(*count))
}

/// What matters, in two sentences.
pub(super) fn headline(account: &Account) -> String {
    let rest = match (account.promised_us, account.covered_us) {
        (0, _) => return "It had no CPUs of its own in this period.".to_owned(),
        (_, 0) => return "Nothing is known: no reading covers this period.".to_owned(),
        (promised, covered) if covered < promised => "; nothing is known of the rest",
        _ => "",
    };
    let counts = counts(account.totals.other_tasks, total(&account.totals.devices));
    let covered = covered(account.promised_us, account.covered_us);
    format!("On its CPUs: {counts} (guaranteed: 0 each). {covered} of the guaranteed time is covered{rest}.")
}

/// "other tasks 3–7, other devices' interrupts 12".
pub(super) fn counts(other_tasks: Range, devices: u64) -> String {
    let (tasks, devices) = (range(other_tasks), grouped(devices));
    format!("other tasks {tasks}, other devices' interrupts {devices}")
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
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8_lossy(&groups.join(&b',')).into_owned()
}

/// Rounded up, so that what is a bound remains one.
pub(super) fn duration(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    let seconds = ns.div_ceil(1_000_000_000);
    let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
    match (ns, seconds) {
        (0, _) => "0".to_owned(),
        (60_000_000_000.., 0..3_600) => format!("{}min {}s", seconds / 60, seconds % 60),
        (60_000_000_000.., 3_600..86_400) => format!("{}h {}min", minutes / 60, minutes % 60),
        (60_000_000_000.., _) => format!("{}d {}h", hours / 24, hours % 24),
        _ => match UNITS.iter().find(|(unit, _)| ns >= *unit) {
            Some((unit, name)) => {
                let tenths = ns.div_ceil(unit / 10);
                format!("{}.{} {name}", tenths / 10, tenths % 10)
            }
            None => format!("{ns} ns"),
        },
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
