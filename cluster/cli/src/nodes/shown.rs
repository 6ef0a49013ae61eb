//! The table of nodes: on a terminal below a line of sums, and with the warnings of all nodes together behind it.

use std::cmp::Reverse;

use stelia_table::{Column, TextStyle, counted, table};

use super::{COLUMNS, Nodes, Row, cores};
use crate::prose;
use crate::reasons::{Refusal, groups, table_of};
use crate::rows::{self, NodeRows};

pub(super) fn text(nodes: &Nodes, style: TextStyle) -> String {
    // Behind so many columns no warning would have room.
    let is_grouped = style.width.is_some() && style.legend && !style.wide;
    let warnings: Vec<(&str, Refusal)> = nodes.nodes.iter().flat_map(warnings).collect();
    let key = |row: &Row| {
        let numbers = [row.cpus, row.free_cpus, row.largest_vm_cpus, row.vms];
        let reasons: Vec<String> = warnings_of(row).map(|warning| warning.what).collect();
        (row.can_admit(), row.state.clone(), numbers, cores(row), reasons)
    };
    let rows = NodeRows::of(nodes.nodes.clone(), style, |row| &mut row.name, key, |_, _| ());
    let shown = |column: &Column<Row>| !is_grouped || column.heading() != "WARNINGS";
    let columns: Vec<Column<Row>> = COLUMNS.into_iter().filter(shown).collect();
    let mut parts = Vec::new();
    if style.width.is_some() && style.legend {
        parts.push(prose(&sums(&nodes.nodes), style));
    }
    parts.push(table(&columns, &rows.rows, style));
    if is_grouped && !warnings.is_empty() {
        let warnings = warnings.iter().map(|(node, warning)| (*node, warning));
        parts.push(table_of(&groups(warnings), "NODES", style));
    }
    if style.legend && rows.is_folded {
        parts.push(prose(rows::FOLDED, style));
    }
    let is_by_amounts = |row: &&Row| row.profile.is_some() && !row.is_exact();
    let by_amounts = nodes.nodes.iter().filter(is_by_amounts).count();
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
    states.sort_by_key(|(_, count)| Reverse(*count));
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

/// Each warning of a node, apart from what differs from node to node.
fn warnings_of(row: &Row) -> impl Iterator<Item = Refusal> {
    row.warnings.iter().map(|warning| {
        let (reason, detail) = warning.split_once(": ").unwrap_or((warning, ""));
        Refusal::new(reason, detail)
    })
}

fn warnings(row: &Row) -> impl Iterator<Item = (&str, Refusal)> {
    warnings_of(row).map(|warning| (row.name.as_str(), warning))
}
