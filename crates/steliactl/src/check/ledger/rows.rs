//! The facts of an account as rows, and their columns: the text and the page are made of these alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::CpuSet;
use stelia_ledger::account::{Account, Day, Gap, LocatedTime, Range, Totals, Window, grouped, share, total};
use stelia_ledger::day::{DAY_US, Date};
use stelia_ledger::entry::{Class, Closed};

use crate::shared::located::{self, clock};
use crate::shared::output::{Column, Grid, Meaning, column, counted};

/// Names of a class that are printed; the others are counted.
const NAMES: usize = 6;
/// Rows of one attribution within an account.
const DOERS: usize = 12;

/// The sums of VMs, or of the days of one.
const fn sums(of: &'static str) -> [Column<Day>; 6] {
    [
        column(of, |sums: &Day| sums.day.clone()).yields(1).shortens(),
        column("GUARANTEE", |sums: &Day| guarantee(sums).1.to_owned()),
        column("COVERED", |sums: &Day| share(sums.promised_us, sums.covered_us)).right(),
        column("OTHER TASKS", |sums: &Day| known(sums, sums.other_tasks.to_string()))
            .right()
            .means(|sums| zero(sums.other_tasks.most)),
        column("INTERRUPTS", |sums: &Day| known(sums, grouped(sums.devices)))
            .right()
            .means(|sums| zero(sums.devices)),
        column("WAITED", |sums: &Day| known(sums, duration(sums.delay_ns))).right(),
    ]
}

pub(super) const SUMS: [Column<Day>; 6] = sums("VM");
const DAYS: [Column<Day>; 6] = sums("DAY");
/// Days that a page lists, of a longer time the last ones.
const MAX_DAYS: u64 = 400;

/// A class of what ran: how often and for how long, where that is counted and measured, and the most frequent names.
type Ran = (&'static str, Option<Range>, Option<u64>, String);

pub(super) const CLASSES: [Column<Ran>; 4] = [
    column("WHAT", |(what, ..): &Ran| (*what).to_owned()),
    column("COUNT", |(_, count, ..): &Ran| {
        count.map_or_else(String::new, |count| count.to_string())
    })
    .right()
    .means(|(what, count, ..)| match count {
        Some(Range { most: 0, .. }) => Meaning::Good,
        // 0 is guaranteed.
        Some(_) if what.starts_with("Other ") => Meaning::Attention,
        _ => Meaning::Plain,
    }),
    column("TIME", |(.., ns, _): &Ran| ns.map(duration).unwrap_or_default()).right(),
    column("NAMES", |(.., names): &Ran| names.clone()).wraps().or_nothing(),
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

pub(super) const WINDOWS: [Column<Window>; 6] = [
    column("FROM", |one: &Window| clock(one.from_us)),
    column("FOR", |one: &Window| lasted(one.from_us, one.until_us)).right(),
    column("CPUS", |one: &Window| one.cpus.clone()).yields(1),
    column("WHAT", |one: &Window| match one.class {
        Class::OtherTasks => "other tasks".to_owned(),
        Class::Devices => format!("interrupt {}", one.name),
    })
    .yields(2),
    column("COUNT", |one: &Window| one.count.to_string())
        .right()
        .means(|one| zero(one.count.most)),
    column("WAITED", |one: &Window| match one.delay_ns {
        0 => String::new(),
        ns => duration(ns),
    })
    .right(),
];

pub(super) const GAPS: [Column<Gap>; 4] = [
    column("FROM", |gap: &Gap| clock(gap.from_us)),
    column("FOR", |gap: &Gap| lasted(gap.from_us, gap.until_us)).right(),
    column("CPUS", |gap: &Gap| gap.cpus.clone()).yields(1),
    column("WHY", |gap: &Gap| gap_cause(gap.why).to_owned()).wraps(),
];

/// A kind, its CPUs, and the sums over them.
type Doer = (&'static str, CpuSet, Occupant);

pub(super) const RAN: [Column<Doer>; 5] = [
    column("WHAT", |(what, ..): &Doer| (*what).to_owned()),
    column("NAME", |(.., who): &Doer| who.name.clone()).yields(1),
    column("CPUS", |(_, cpus, _): &Doer| cpus.to_string()).yields(2),
    column("COUNT", |(.., who): &Doer| grouped(who.count)).right(),
    column("RAN", |(.., who): &Doer| match (who.ns.map(duration), who.estimated) {
        (Some(time), true) => format!("about {time}"),
        (time, _) => time.unwrap_or_default(),
    })
    .right(),
];

/// Empty where no reading says so.
fn known(sums: &Day, text: String) -> String {
    let is_known = sums.covered_us > 0 || sums.other_tasks.most > 0 || sums.devices > 0;
    Some(text).filter(|_| is_known).unwrap_or_default()
}

fn zero(count: u64) -> Meaning {
    if count == 0 { Meaning::Good } else { Meaning::Attention }
}

/// A part of an account: a table with its title.
pub(super) struct Section {
    pub title: String,
    /// What its rows are; empty where the title says it.
    pub about: &'static str,
    pub grid: Grid,
    /// What the table does not have.
    pub missing: Vec<String>,
}

impl Section {
    fn of<T>(title: &str, about: &'static str, columns: &[Column<T>], rows: &[T]) -> Self {
        Self {
            title: title.to_owned(),
            about,
            grid: Grid::of(columns, rows),
            missing: Vec::new(),
        }
    }
}

/// The tables of an account, first that of the classes.
pub(super) fn sections(account: &Account) -> Vec<Section> {
    const GUARANTEED: &str = "Other tasks and other devices' interrupts are guaranteed to be 0.";
    const WINDOW: &str = "A window is the time from one reading of the counters to the next.";
    const GAP: &str = "The guaranteed time for which there are no two readings of the same counters.";
    const PLACE: &str = "Near: on a NUMA node of these CPUs. Attached: on a node without CPUs that belongs to one of these, or to a device. \
                         Remote: on any other node. Read once an hour, or less often on nodes with many VMs, and when the CPUs change.";
    let gaps = Section::of("Times that are not covered", GAP, &GAPS, &account.gaps);
    let more = counted(account.gaps_left_out, "more gap");
    let missing = Some(format!("{more} not listed.")).filter(|_| account.gaps_left_out > 0);
    let places = "NUMA nodes of CPUs, memory and devices";
    let all = [
        Section::of(
            "Everything that was counted",
            GUARANTEED,
            &CLASSES,
            &classes(&account.totals),
        ),
        Section::of("The worst windows", WINDOW, &WINDOWS, &account.worst),
        Section {
            missing: missing.into_iter().collect(),
            ..gaps
        },
        Section::of(places, PLACE, &LOCATED, &account.located),
    ];
    all.into_iter().chain(account.attributions.iter().map(ran)).collect()
}

/// The sums of each day of the period; of a day without a reading nothing is known.
pub(super) fn days(account: &Account) -> Section {
    const ABOUT: &str = "Guaranteed on every day: 0 other tasks and 0 interrupts of other devices.";
    let last = account.until_us.saturating_sub(1) / DAY_US;
    let first = (account.since_us / DAY_US).max(last.saturating_sub(MAX_DAYS - 1));
    let day = |number| {
        let name = Date::from_days(number).to_string();
        let read = account.days.iter().find(|day| day.day == name).cloned();
        read.unwrap_or(Day {
            day: name,
            promised_us: DAY_US,
            ..Day::default()
        })
    };
    // It is not known when the ledger files begin.
    let is_before = |day: &Day| account.since_us == 0 && day.covered_us == 0;
    let days: Vec<Day> = (first..=last).map(day).skip_while(is_before).collect();
    Section::of("Day by day", ABOUT, &DAYS, &days)
}

/// Who ran during one attribution, and why that may not be all.
pub(super) fn ran(one: &Attribution) -> Section {
    let rows = who(one);
    let title = format!("Who ran on CPUs {}, {}", one.cpus, between(one.from_us, one.until_us));
    let dropped = Some(grouped(one.dropped)).filter(|_| one.dropped > 0);
    let dropped = dropped.map(|events| format!("Incomplete: the kernel had no room to count {events} events."));
    let problems = one.problems.iter().map(|problem| format!("Problem: {problem}"));
    let mut missing: Vec<String> = dropped.into_iter().chain(problems).collect();
    if rows.is_empty() {
        // An incomplete one proves nothing.
        let nothing = if missing.is_empty() {
            "Nothing else ran."
        } else {
            "Unknown."
        };
        missing.insert(0, nothing.to_owned());
    }
    Section {
        missing,
        ..Section::of(&title, "", &RAN, &rows)
    }
}

/// The classes in the order in which a customer asks for them.
fn classes(totals: &Totals) -> [Ran; 9] {
    let exactly = |least| Some(Range { least, most: least });
    let named = |what, names| (what, exactly(total(names)), None, listed(names));
    let timed = |what, count, ns| (what, count, Some(ns), String::new());
    let threads = totals.kernel_threads.iter();
    let bound = threads.map(|(name, ran)| (name.clone(), ran.count)).collect();
    let times = totals.kernel_threads.values().map(|ran| ran.ns);
    let (what, count, _, names) = named("Bound kernel threads", &bound);
    [
        ("Other tasks", Some(totals.other_tasks), None, String::new()),
        named("Other devices' interrupts", &totals.devices),
        named("Kernel interrupts", &totals.upkeep),
        named("Kernel soft interrupts", &totals.softirqs),
        (what, count, Some(times.fold(0, u64::saturating_add)), names),
        timed("Own threads", exactly(totals.own.count), totals.own.ns),
        named("Own interrupts", &totals.own_interrupts),
        timed("Waited for a CPU", None, totals.delay_ns),
        timed("Steal", None, totals.steal_ns),
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

/// Whether something ran that is guaranteed not to. A lower bound of 0 proves nothing, nor does a time that no reading covers.
pub(super) fn is_broken(sums: &Day) -> bool {
    sums.covered_us > 0 && (sums.other_tasks.least > 0 || sums.devices > 0)
}

/// Whether the guarantee was kept: the class of the page's headline, a word, and what it is by.
pub(super) fn guarantee(sums: &Day) -> (&'static str, &'static str, String) {
    let (look, word) = match sums {
        Day { promised_us: 0, .. } => {
            return ("unknown", "none", "it had no CPUs of its own in this period".to_owned());
        }
        Day { covered_us: 0, .. } => return ("unknown", "not known", "no reading covers this period".to_owned()),
        sums if is_broken(sums) => ("some", "broken"),
        sums if sums.other_tasks.most > 0 => ("some", "perhaps broken"),
        _ => ("zero", "kept"),
    };
    (look, word, counts(sums))
}

/// How much of the guaranteed time is covered; empty where nothing was guaranteed.
pub(super) fn coverage(account: &Account) -> String {
    let is_part = account.covered_us < account.promised_us;
    let rest = if is_part { ", nothing is known of the rest" } else { "" };
    match share(account.promised_us, account.covered_us) {
        none if none.is_empty() => none,
        share => format!("{share} of the guaranteed time{rest}"),
    }
}

/// "3–7 other tasks, 12 device interrupts".
pub(super) fn counts(day: &Day) -> String {
    let devices = grouped(day.devices);
    format!("{} other tasks, {devices} device interrupts", day.other_tasks)
}

/// In the largest unit, rounded up to a tenth: what is a bound remains one.
pub(super) fn duration(ns: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "µs"),
    ];
    let Some((unit, name)) = UNITS.iter().find(|(unit, _)| ns >= *unit) else {
        return if ns > 0 { format!("{ns} ns") } else { "0".to_owned() };
    };
    let tenths = ns.div_ceil(unit / 10);
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        rest => format!("{}.{rest} {name}", tenths / 10),
    }
}

fn lasted(from_us: u64, until_us: u64) -> String {
    duration(until_us.saturating_sub(from_us).saturating_mul(1_000))
}

/// From when until when; the beginning may be that of the ledger files, which is not known.
pub(super) fn between(from_us: u64, until_us: u64) -> String {
    match (from_us, until_us) {
        (0, 0) => "until now".to_owned(),
        (0, until) => format!("until {}", clock(until)),
        (from, 0) => format!("{} to now", clock(from)),
        (from, until) => format!("{} to {}", clock(from), clock(until)),
    }
}

fn gap_cause(why: Closed) -> &'static str {
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

/// Over all CPUs, the first few by kind; within a kind those first that ran longest, then those that ran most often.
fn who(attribution: &Attribution) -> Vec<Doer> {
    let kinds = [
        ("task", &attribution.tasks),
        ("interrupt", &attribution.interrupts),
        ("soft interrupt", &attribution.softirqs),
        ("kernel interrupt", &attribution.vectors),
    ];
    let each = kinds.into_iter().flat_map(|(what, occupants)| {
        let mut by_name: BTreeMap<&str, (CpuSet, Occupant)> = BTreeMap::new();
        for one in occupants {
            let (cpus, sum) = by_name.entry(&one.name).or_default();
            // No kernel has more; a list of CPUs is as long as its last one.
            if one.cpu < 1 << 16 {
                cpus.insert(one.cpu);
            }
            sum.name.clone_from(&one.name);
            sum.count = sum.count.saturating_add(one.count);
            sum.ns = one.ns.map(|ns| ns.saturating_add(sum.ns.unwrap_or(0))).or(sum.ns);
            sum.estimated |= one.estimated;
        }
        let mut all: Vec<(CpuSet, Occupant)> = by_name.into_values().collect();
        all.sort_by_key(|(_, sum)| Reverse((sum.ns, sum.count)));
        all.into_iter().map(move |(cpus, sum)| (what, cpus, sum))
    });
    each.take(DOERS).collect()
}
