//! Accounts as tables.

use stelia_ledger::account::{Day, Gap, LocatedTime, Window};

use super::VmAccount;
use super::owner;
use super::words::{self, Row, RunRow};
use crate::shared::located;
use crate::shared::output::{Column, Meaning, TextStyle, column, counted, printable, properties, table};

/// Names of a class that are printed; the others are counted.
const NAMES: usize = 6;
/// Rows of one attribution within an account.
const DOERS: usize = 8;

pub(crate) const ALL: [Column<VmAccount>; 7] = [
    column("POD", |vm_account: &VmAccount| vm_account.pod.to_string()).yields(1),
    column("POD UID", |vm_account: &VmAccount| vm_account.pod.pod_uid.clone()).wide(),
    column("COVERED", |vm_account: &VmAccount| {
        words::covered(vm_account.account.promised_us, vm_account.account.covered_us)
    })
    .right(),
    column("OTHER TASKS", |vm_account: &VmAccount| {
        words::range(vm_account.account.totals.other_tasks)
    })
    .right()
    .means(|vm_account| zero(vm_account.account.totals.other_tasks.most)),
    column("OTHER DEVICES", |vm_account: &VmAccount| {
        words::grouped(words::total(&vm_account.account.totals.devices))
    })
    .right()
    .means(|vm_account| zero(words::total(&vm_account.account.totals.devices))),
    column("LOST AT MOST", |vm_account: &VmAccount| {
        words::duration(vm_account.account.totals.delay_ns)
    })
    .right(),
    column("WORST DAY", |vm_account: &VmAccount| {
        let worst = words::worst_day(&vm_account.account.days);
        worst.map(|day| day.day.clone()).unwrap_or_default()
    }),
];

pub(crate) const CLASSES: [Column<Row>; 4] = [
    column("WHAT", |row: &Row| row.what.to_string()),
    column("COUNT", |row: &Row| row.count.clone())
        .right()
        .means(|row| match (row.amiss, row.count.as_str()) {
            (true, _) => Meaning::Attention,
            (false, "0") => Meaning::Good,
            _ => Meaning::Plain,
        }),
    column("TIME", |row: &Row| row.time.clone()).right(),
    column("OF WHICH", |row: &Row| words::listed(&row.names, NAMES))
        .yields(1)
        .or_nothing(),
];

pub(crate) const WORST_COLUMNS: [Column<Window>; 6] = [
    column("FROM", |window: &Window| words::clock(window.from_us)),
    column("UNTIL", |window: &Window| words::clock(window.until_us)),
    column("CPUS", |window: &Window| window.cpus.clone()).yields(1),
    column("WHAT", words::ran).yields(2),
    column("COUNT", |window: &Window| words::range(window.count)).right(),
    column("LOST AT MOST", |window: &Window| match window.delay_ns {
        0 => String::new(),
        ns => words::duration(ns),
    })
    .right(),
];

pub(crate) const GAPS: [Column<Gap>; 4] = [
    column("FROM", |gap: &Gap| words::clock(gap.from_us)),
    column("UNTIL", |gap: &Gap| words::clock(gap.until_us)),
    column("CPUS", |gap: &Gap| gap.cpus.clone()).yields(1),
    column("WHY", |gap: &Gap| words::why(gap.why).to_owned()).yields(2),
];

pub(crate) const DAYS: [Column<Day>; 5] = [
    column("DAY", |day: &Day| day.day.clone()),
    column("COVERED", |day: &Day| words::covered(day.promised_us, day.covered_us)).right(),
    column("OTHER TASKS", |day: &Day| words::range(day.other_tasks))
        .right()
        .means(|day| zero(day.other_tasks.most)),
    column("OTHER DEVICES", |day: &Day| words::grouped(day.devices))
        .right()
        .means(|day| zero(day.devices)),
    column("LOST AT MOST", |day: &Day| words::duration(day.delay_ns)).right(),
];

pub(crate) const RUN_COLUMNS: [Column<RunRow>; 5] = [
    column("WHAT", |who: &RunRow| who.what.to_owned()),
    column("NAME", |who: &RunRow| who.name.clone()).yields(1),
    column("CPUS", |who: &RunRow| who.cpus.to_string()).yields(2),
    column("COUNT", |who: &RunRow| words::grouped(who.count)).right(),
    column("RAN", RunRow::ran).right(),
];

pub(crate) const LOCATED: [Column<LocatedTime>; 5] = [
    column("PART", |time: &LocatedTime| located::part(&time.located)).yields(1),
    column("NUMA NODES", |time: &LocatedTime| located::nodes(&time.located)).yields(2),
    column("PLACE", |time: &LocatedTime| located::place(&time.located)).means(|time| located::meaning(&time.located)),
    column("SINCE", |time: &LocatedTime| words::clock(time.located.since_us)),
    column("UNTIL", |time: &LocatedTime| words::clock(time.until_us)).or_nothing(),
];

fn zero(count: u64) -> Meaning {
    match count {
        0 => Meaning::Good,
        _ => Meaning::Attention,
    }
}

pub(super) fn all(accounts: &[VmAccount], style: TextStyle) -> String {
    if accounts.is_empty() {
        return "No VM had CPUs of its own in this time.\n".to_owned();
    }
    table(&ALL, accounts, style)
}

pub(super) fn one(vm_account: &VmAccount, style: TextStyle) -> String {
    let account = &vm_account.account;
    let mut parts = Vec::new();
    if style.legend {
        parts.push(head(vm_account, style));
    }
    parts.push(table(&CLASSES, &words::rows(account), style));
    let mut part = |title: &str, text: String| {
        if style.legend {
            parts.push(format!("{title}\n{text}"))
        } else {
            parts.push(text)
        }
    };
    if !account.located.is_empty() {
        let legend = if style.legend {
            located::legend(account.located.iter().map(|time| &time.located))
        } else {
            String::new()
        };
        part(
            "The NUMA nodes of its CPUs, memory and devices, read once an hour, or less often on nodes with many VMs, and when its CPUs change:",
            table(&LOCATED, &account.located, style) + &legend,
        );
    }
    if style.wide && !account.days.is_empty() {
        part("By day:", table(&DAYS, &account.days, style));
    }
    if !account.worst.is_empty() {
        part("The worst windows:", table(&WORST_COLUMNS, &account.worst, style));
    }
    if !account.gaps.is_empty() {
        let more = match account.gaps_left_out {
            0 => String::new(),
            count => format!("And {} more.\n", counted(count, "gap")),
        };
        let mut columns = GAPS;
        if account.is_container {
            columns[3] = column("WHY", |gap: &Gap| owner::why_of_container(gap.why)).yields(2);
        }
        part(
            "Not covered by readings:",
            table(&columns, &account.gaps, style) + &more,
        );
    }
    for one in &account.attributions {
        let mut rows = words::who(one);
        rows.truncate(DOERS);
        let title = format!(
            "Who ran on CPUs {}, {}:",
            printable(&one.cpus),
            between(one.from_us, one.until_us)
        );
        part(&title, who(&rows, &words::incomplete(one), style));
    }
    parts.join("\n")
}

fn head(vm_account: &VmAccount, style: TextStyle) -> String {
    let account = &vm_account.account;
    let time = between(account.since_us, account.until_us);
    let kept = format!("entry {}, {}", account.seq, account.hash);
    let kind = if account.is_container { "Container" } else { "VM" };
    let rows = [
        (kind, vm_account.pod.in_full()),
        ("Time (UTC)", time),
        ("Covered", words::covered(account.promised_us, account.covered_us)),
        ("Last entry", kept),
    ];
    // The sentence is whole on any terminal.
    format!("{}\n\n{}", words::headline(account), properties(rows, style))
}

/// From when until when; the beginning may be the ring's, which is not known.
pub(super) fn between(from_us: u64, until_us: u64) -> String {
    let until = match until_us {
        0 => "now".to_owned(),
        us => words::clock(us),
    };
    match from_us {
        0 => format!("until {until}"),
        us => format!("{} to {until}", words::clock(us)),
    }
}

/// Who ran, and why that may not be all.
pub(super) fn who(rows: &[RunRow], incomplete: &[String], style: TextStyle) -> String {
    let mut text = if rows.is_empty() {
        format!("{}\n", words::no_rows(incomplete))
    } else {
        table(&RUN_COLUMNS, rows, style)
    };
    for problem in incomplete {
        text += &format!("Problem: {}\n", printable(problem));
    }
    text
}
