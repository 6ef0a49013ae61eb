//! The table of nodes: on a terminal below a line of sums, and with footnotes instead of warnings where these have no room.

use std::collections::BTreeMap;

use stelia_table::{Column, Meaning, TextStyle, counted, table};

use super::{COLUMNS, Nodes, Row, cores, number};
use crate::cluster::without_domain;
use crate::node_rows::{self, NodeRows};
use crate::prose;

/// The columns on a terminal that has no room for [`COLUMNS`].
fn narrow_columns() -> Vec<Column<Row>> {
    let columns = COLUMNS.into_iter().map(|column| match column.heading() {
        "FREE CORES" => stelia_table::column("FREE CORES", cores_without_ids).wraps().whole(),
        "WARNINGS" => stelia_table::column("NOTE", |row: &Row| row.warnings.join(" "))
            .wraps()
            .whole()
            .means(|_| Meaning::Attention)
            .or_nothing(),
        _ => column,
    });
    columns.collect()
}

/// `12 8`, where the ids of the NUMA nodes are 0 and 1.
fn cores_without_ids(row: &Row) -> String {
    let are_in_order = row.numa.iter().zip(0..).all(|(numa, place)| numa.node == place);
    if are_in_order && row.numa.iter().all(|numa| numa.free_cores.is_some()) {
        let cores: Vec<String> = row.numa.iter().map(|numa| number(numa.free_cores)).collect();
        cores.join(" ")
    } else {
        cores(row)
    }
}

pub(super) fn text(nodes: &Nodes, style: TextStyle) -> String {
    // So many columns would be cut to nothing on most terminals.
    let uncut = TextStyle {
        width: style.width.filter(|_| !style.wide),
        ..style
    };
    let notes = Notes::of(&nodes.nodes);
    let key = |row: &Row| {
        let numbers = [row.cpus, row.free_cpus, row.largest_vm_cpus, row.vms];
        let (ready, state) = (row.can_admit(), row.state.clone());
        (ready, state, numbers, cores(row), notes.numbers(row))
    };
    let mut rows = NodeRows::of(nodes.nodes.clone(), style, |row| &mut row.name, key, |_, _| ());
    let is_narrow = uncut.width.is_some_and(|width| !fits(&rows.rows, width, style));
    let has_notes = uncut.width.is_some() && style.legend && (is_narrow || (rows.is_folded && notes.are_different()));
    let mut parts = Vec::new();
    if style.width.is_some() && style.legend {
        parts.push(prose(&sums(&nodes.nodes), style));
    }
    if has_notes {
        for row in &mut rows.rows {
            row.warnings = notes.numbers(row).iter().map(|number| format!("[{number}]")).collect();
        }
        parts.push(table(&narrow_columns(), &rows.rows, uncut));
        let words = notes.in_words();
        parts.extend((!words.is_empty()).then(|| words.iter().map(|note| prose(note, style)).collect()));
    } else {
        parts.push(table(&COLUMNS, &rows.rows, uncut));
    }
    if style.legend && rows.is_folded {
        parts.push(prose(node_rows::FOLDED, style));
    }
    let by_amounts = nodes.nodes.iter();
    let by_amounts = by_amounts
        .filter(|row| row.profile.is_some() && !row.is_exact())
        .count();
    if style.legend && by_amounts > 0 {
        let by_amounts = counted(by_amounts as u64, "node");
        let sentence = format!(
            "{by_amounts} by amounts only (profile nrt): free cores are not known, and LARGEST is the most that the CPUs allow."
        );
        parts.push(prose(&sentence, style));
    }
    parts.join("\n")
}

/// `400 nodes: 370 usable, 30 away; 9000 CPUs are free, the largest VM has 58.`
fn sums(rows: &[Row]) -> String {
    let mut states: Vec<(&str, u64)> = Vec::new();
    for row in rows {
        let state = if row.is_without_steliad {
            "without steliad"
        } else {
            row.state.as_str()
        };
        match states.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => states.push((state, 1)),
        }
    }
    states.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let admitting = || rows.iter().filter(|row| !row.admits_none);
    let free = admitting().filter_map(|row| row.free_cpus).fold(0, u64::saturating_add);
    let largest = admitting().filter_map(|row| row.largest_vm_cpus).max().unwrap_or(0);
    let (nodes, free) = (counted(rows.len() as u64, "node"), counted(free, "free CPU"));
    format!(
        "{nodes}: {}; {free} where VMs are admitted, LARGEST {largest}.",
        states.join(", ")
    )
}

/// Whether each row has a line of the terminal, with its warnings.
fn fits(rows: &[Row], width: usize, style: TextStyle) -> bool {
    let whole = TextStyle {
        width: None,
        coloured: false,
        ..style
    };
    let text = table(&COLUMNS, rows, whole);
    text.lines().all(|line| line.chars().count() <= width)
}

/// A warning without what differs from node to node.
fn reason(warning: &str) -> &str {
    warning.split_once(": ").map_or(warning, |(reason, _)| reason)
}

/// A footnote for each reason, in the order of the rows.
struct Notes<'a>(Vec<Note<'a>>);

struct Note<'a> {
    reason: &'a str,
    /// The warnings of this reason, each with the first node that has it and how many do.
    warnings: BTreeMap<&'a str, (&'a str, u64)>,
}

impl<'a> Notes<'a> {
    fn of(rows: &'a [Row]) -> Self {
        let mut notes: Vec<Note<'a>> = Vec::new();
        let warnings = rows.iter().flat_map(|row| {
            let warnings = row.warnings.iter();
            warnings.map(|warning| (row.name.as_str(), warning.as_str()))
        });
        for (node, warning) in warnings {
            let at = notes.iter().position(|note| note.reason == reason(warning));
            let at = at.unwrap_or_else(|| {
                notes.push(Note {
                    reason: reason(warning),
                    warnings: BTreeMap::new(),
                });
                notes.len() - 1
            });
            if let Some(note) = notes.get_mut(at) {
                note.warnings.entry(warning).or_insert((node, 0)).1 += 1;
            }
        }
        Self(notes)
    }

    /// The numbers of the footnotes of a row, the first of them 1.
    fn numbers(&self, row: &Row) -> Vec<usize> {
        let Self(notes) = self;
        let numbers = (1..).zip(notes).filter(|(_, note)| {
            let mut warnings = row.warnings.iter();
            warnings.any(|warning| reason(warning) == note.reason)
        });
        numbers.map(|(number, _)| number).collect()
    }

    /// Whether nodes have the same reason with different words.
    fn are_different(&self) -> bool {
        let Self(notes) = self;
        notes.iter().any(|note| note.warnings.len() > 1)
    }

    fn in_words(&self) -> Vec<String> {
        let Self(notes) = self;
        (1..)
            .zip(notes)
            .map(|(number, note)| format!("[{number}] {}", note.in_words()))
            .collect()
    }
}

impl Note<'_> {
    /// The warning, or the one that most nodes have, with such a node.
    fn in_words(&self) -> String {
        let most = self.warnings.iter().max_by_key(|(_, (_, count))| *count);
        match most {
            Some((warning, (node, _))) if self.warnings.len() > 1 => {
                let nodes: u64 = self.warnings.values().map(|(_, count)| *count).sum();
                let (nodes, node) = (counted(nodes, "node"), without_domain(node));
                let detail = warning.split_once(": ").map_or(*warning, |(_, detail)| detail);
                format!("{} on {nodes}, such as {node}: {detail}", self.reason)
            }
            Some((warning, _)) => (*warning).to_owned(),
            None => String::new(),
        }
    }
}
