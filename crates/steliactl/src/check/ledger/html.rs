//! The report as one page: no script, nothing from elsewhere, and a policy that forbids both. A browser's print makes a clean document
//! of it. Names are text of others: all of them pass through [`escaped`].

use std::fmt::Write as _;

use stelia_api::attribution::Attribution;
use stelia_ledger::account::Account;

use super::calendar;
use super::owner;
use super::report::{Report, ReportProof};
use super::text::between;
use super::words::{self, Row};
use crate::shared::located;
use crate::shared::output::{counted, escaped, printable};

/// The beginning of a page that needs nothing else: no script, nothing from elsewhere, and a policy that forbids both.
const PAGE_HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
    form-action 'none'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n";
const STYLE: &str = include_str!("html.css");
const NAMES: usize = 12;
const DOERS: usize = 12;

pub(super) fn page(report: &Report) -> String {
    let account = &report.vm_account.account;
    let vm = clean(&report.vm_account.pod.to_string());
    let time = between(account.since_us, account.until_us);
    let mut out = format!(
        "{PAGE_HEAD}<title>Who ran on the CPUs of {vm}, {time} UTC</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Who ran on the CPUs of {vm}</h1>\n\
         <p class=\"about\">{time}, all times UTC</p>\n<p class=\"headline {class}\">{headline}</p>\n",
        class = class(account),
        headline = words::headline(account),
    );
    facts(&mut out, report);
    days(&mut out, account);
    classes(&mut out, account);
    located_times(&mut out, account);
    worst(&mut out, account);
    gaps(&mut out, account);
    for one in &account.attributions {
        attribution(&mut out, one);
    }
    proof(&mut out, &report.proof, account);
    out + "</body>\n</html>\n"
}

fn clean(text: &str) -> String {
    escaped(&printable(text))
}

fn class(account: &Account) -> &'static str {
    let totals = &account.totals;
    let is_zero = totals.other_tasks.most == 0 && words::total(&totals.devices) == 0;
    match (account.covered_us, is_zero) {
        (0, _) => "unknown",
        (_, true) => "zero",
        (_, false) => "some",
    }
}

fn terms(out: &mut String, rows: &[(&str, String)]) {
    out.push_str("<dl>\n");
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{value}</dd>");
    }
    out.push_str("</dl>\n");
}

/// A table; cells are HTML, those of the columns marked with `#` numbers, of those with `@` times.
fn table(out: &mut String, headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let kinds: Vec<&str> = headings
        .iter()
        .map(|heading| match heading.chars().next() {
            Some('#') => " class=\"n\"",
            Some('@') => " class=\"time\"",
            _ => "",
        })
        .collect();
    out.push_str("<div class=\"table\"><table>\n<thead><tr>");
    for (heading, kind) in headings.iter().zip(&kinds) {
        let _ = write!(
            out,
            "<th scope=\"col\"{kind}>{}</th>",
            heading.trim_start_matches(['#', '@'])
        );
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (cell, kind) in row.iter().zip(&kinds) {
            let _ = write!(out, "<td{kind}>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
}

fn facts(out: &mut String, report: &Report) {
    let account = &report.vm_account.account;
    let worst = words::worst_day(&account.days).map(|day| {
        format!(
            "{}: other tasks {}, other devices' interrupts {}",
            clean(&day.day),
            words::range(day.other_tasks),
            words::grouped(day.devices)
        )
    });
    let kind = if account.is_container { "Container" } else { "VM" };
    let rows = [
        (kind, clean(&report.vm_account.pod.to_string())),
        ("Pod UID", clean(&report.vm_account.pod.pod_uid)),
        ("Host", clean(&report.host)),
        ("Time covered", words::covered(account.promised_us, account.covered_us)),
        ("Worst day", worst.unwrap_or_default()),
        ("Report made", words::clock(report.made_us)),
    ];
    terms(out, &rows);
}

fn days(out: &mut String, account: &Account) {
    out.push_str("<h2>Day by day</h2>\n<p>The number in a day counts what 0 is promised of: other tasks and other devices' interrupts.</p>\n<ul class=\"key\">");
    let kinds = [
        ("zero", "0, and all of the day is covered"),
        ("part", "0 in what is covered, which is not all"),
        ("some", "something ran"),
        ("unknown", "no data: nothing is claimed"),
    ];
    for (class, says) in kinds {
        let _ = write!(
            out,
            "<li><svg width=\"22\" height=\"15\" aria-hidden=\"true\"><g class=\"{class}\"><rect x=\"1.5\" y=\"1.5\" width=\"19\" height=\"12\" \
             rx=\"3\"/></g></svg>{says}</li>"
        );
    }
    let _ = write!(out, "</ul>\n{}", calendar::months(account));
}

fn classes(out: &mut String, account: &Account) {
    out.push_str("<h2>Everything that was counted</h2>\n");
    let row = |row: &Row| {
        let count = if row.amiss {
            format!("<span class=\"amiss\">{}</span>", row.count)
        } else {
            row.count.clone()
        };
        let names = if row.names.is_empty() {
            String::new()
        } else {
            format!(
                "<br><span class=\"names\">{}</span>",
                clean(&words::listed(&row.names, NAMES))
            )
        };
        vec![
            row.what.to_string(),
            count,
            row.time.clone(),
            format!("<span class=\"means\">{}</span>{names}", row.means),
        ]
    };
    let rows = words::rows(account);
    table(
        out,
        &["What", "#How often", "#How long", "What it is"],
        rows.iter().map(row),
    );
}

fn located_times(out: &mut String, account: &Account) {
    if account.located.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>NUMA nodes</h2>\n<p>Where the CPUs, the memory, the devices of the {} and their interrupts were. Near: on a NUMA node of its CPUs. \
         Attached: on a NUMA node without CPUs that belongs to one of these, or to one of its devices. Remote: on any other NUMA node. The times are \
         those of readings, once an hour, or less often on nodes with many VMs, and when its CPUs change.</p>",
        owner::kind(account)
    );
    let rows = account.located.iter().map(|time| {
        let place = if time.located.is_much_remote() {
            format!("<span class=\"amiss\">{}</span>", located::place(&time.located))
        } else {
            located::place(&time.located)
        };
        vec![
            clean(&located::part(&time.located)),
            located::nodes(&time.located),
            place,
            words::clock(time.located.since_us),
            words::clock(time.until_us),
        ]
    });
    table(out, &["Part", "NUMA nodes", "Place", "@Since", "@Until"], rows);
}

fn worst(out: &mut String, account: &Account) {
    out.push_str("<h2>The worst windows</h2>\n");
    if account.worst.is_empty() {
        let _ = writeln!(
            out,
            "<p>None: in no window did another task or another device's interrupt come onto the {}'s CPUs.</p>",
            owner::kind(account)
        );
        return;
    }
    out.push_str("<p>A window is the time from one reading of the counters to the next.</p>\n");
    let rows = account.worst.iter().map(|window| {
        vec![
            words::clock(window.from_us),
            words::clock(window.until_us),
            clean(&window.cpus),
            clean(&words::ran(window)),
            words::range(window.count),
            match window.delay_ns {
                0 => String::new(),
                ns => words::duration(ns),
            },
        ]
    });
    table(
        out,
        &["@From", "@Until", "CPUs", "What", "#How often", "#Lost at most"],
        rows,
    );
}

fn gaps(out: &mut String, account: &Account) {
    let _ = writeln!(
        out,
        "<h2>Times that are not covered</h2>\n<p>{} of the time that the {} had CPUs of its own lies between two readings of the \
         same counters.</p>",
        match words::covered(account.promised_us, account.covered_us) {
            none if none.is_empty() => "Nothing".to_owned(),
            covered => covered,
        },
        owner::kind(account)
    );
    if !account.gaps.is_empty() {
        let rows = account.gaps.iter().map(|gap| {
            vec![
                words::clock(gap.from_us),
                words::clock(gap.until_us),
                clean(&gap.cpus),
                if account.is_container {
                    owner::why_of_container(gap.why)
                } else {
                    words::why(gap.why).to_owned()
                },
            ]
        });
        table(out, &["@From", "@Until", "CPUs", "Why"], rows);
    }
    if account.gaps_left_out > 0 {
        let _ = writeln!(out, "<p>And {} more.</p>", counted(account.gaps_left_out, "gap"));
    }
}

fn attribution(out: &mut String, one: &Attribution) {
    let _ = writeln!(
        out,
        "<h2>Who ran, {} on CPUs {}</h2>",
        between(one.from_us, one.until_us),
        clean(&one.cpus)
    );
    let incomplete = words::incomplete(one);
    let mut rows = words::who(one);
    rows.truncate(DOERS);
    if rows.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", words::no_rows(&incomplete));
    } else {
        let rows = rows.iter().map(|who| {
            vec![
                who.what.to_owned(),
                clean(&who.name),
                who.cpus.to_string(),
                words::grouped(who.count),
                who.ran(),
            ]
        });
        table(out, &["What", "Name", "CPUs", "#How often", "#Ran"], rows);
    }
    for problem in incomplete {
        let _ = writeln!(out, "<p class=\"bad\">{}</p>", clean(&problem));
    }
}

/// What the account is held to, and how to check that without us.
fn proof(out: &mut String, proof: &ReportProof, account: &Account) {
    out.push_str("<h2>How this can be checked</h2>\n");
    let state = match (proof.good, proof.faults) {
        (true, _) => "Every line of the ledger was what was written when this report was made.".to_owned(),
        (false, faults) => format!(
            "<span class=\"bad\">The ledger is not what was written: {}.</span>",
            counted(faults, "fault")
        ),
    };
    let _ = writeln!(out, "<p>{state}</p>");
    let code = |text: &str| {
        if text.is_empty() {
            String::new()
        } else {
            format!("<code>{}</code>", clean(text))
        }
    };
    let mut rows = vec![
        ("Last entry", account.seq.to_string()),
        ("Its hash", code(&account.hash)),
        ("Node's key", code(&proof.key)),
    ];
    match &proof.head {
        Some(head) => rows.extend([
            ("Signed head", format!("of {}, entry {}", clean(&head.day), head.seq)),
            ("Head's hash", code(&head.hash)),
            ("Signed with", code(&head.key)),
            ("Signature", code(&head.signature)),
        ]),
        None => rows.push((
            "Signed head",
            "none yet: a day's head is signed when the day is over".to_owned(),
        )),
    }
    terms(out, &rows);
    if proof.head.is_some() && !proof.covers {
        out.push_str("<p>That head does not cover the last entries of this report yet.</p>\n");
    }
    let _ = write!(
        out,
        "<ol>\n<li>Have the node's key from a source other than this report.</li>\n\
         <li>Have a copy of the node's ledger, the files <code>*.ledger</code>, and check it: \
         <code>steliactl ledger verify --directory DIR --key KEY --expect {}:{}</code>, or without our programs \
         <code>python3 verify-ledger.py --key KEY DIR/*.ledger</code>, a script short enough to be read.</li>\n\
         <li>Make this report again from the copy: <code>steliactl ledger VM --directory DIR --report html</code>. The numbers and the \
         hash of the last entry are the same.</li>\n</ol>\n\
         <p>Each line of the ledger carries the hash of the line before it, and each day's last hash is signed. So nothing that was \
         written can be changed, dropped or reordered unnoticed by who has not the key. It does not prove that the host's \
         administrator wrote the truth in the first place.</p>\n",
        account.seq,
        clean(&account.hash),
    );
}
