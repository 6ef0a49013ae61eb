//! The table of nodes: on a terminal those that need attention come first, and warnings are footnotes where they have no room.

use stelia_table::{TextStyle, counted, table};

use super::{COLUMNS, Nodes, Row};
use crate::node_rows::{self, NodeRows};
use crate::prose;

pub(super) fn text(nodes: &Nodes, style: TextStyle) -> String {
    // So many columns would be cut to nothing on most terminals.
    let uncut = TextStyle {
        width: style.width.filter(|_| !style.wide),
        ..style
    };
    let mut rows = nodes.nodes.clone();
    if uncut.width.is_some() {
        rows.sort_by_key(trouble);
    }
    let mut rows = NodeRows::of(rows, style, |row| &mut row.name, Row::shown);
    let footnotes = match uncut.width {
        Some(width) if style.legend && !fits(&rows.rows, width, style) => footnotes(&mut rows.rows),
        _ => Vec::new(),
    };
    let mut notes = Vec::new();
    if !footnotes.is_empty() {
        notes.push(footnotes.iter().map(|note| prose(note, style)).collect());
    }
    if style.legend && rows.is_folded {
        notes.push(prose(node_rows::FOLDED, style));
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
        notes.push(prose(&sentence, style));
    }
    let notes: Vec<String> = notes.into_iter().map(|note: String| format!("\n{note}")).collect();
    table(&COLUMNS, &rows.rows, uncut) + &notes.concat()
}

/// What needs attention first.
fn trouble(row: &Row) -> u8 {
    match (row.state.as_str(), row.can_admit()) {
        ("usable", Some(false)) => 1,
        ("usable", _) if row.warnings.is_empty() => 4,
        ("usable", _) => 3,
        // It may be a node that is not meant to run steliad.
        ("unpublished", _) => 2,
        (_, _) if row.is_not_ready => 0,
        (_, _) => 1,
    }
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

/// The rows with a number instead of each warning, and the warnings.
fn footnotes(rows: &mut [Row]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for row in rows {
        let mut numbers = Vec::new();
        for warning in row.warnings.drain(..) {
            let known = notes.iter().position(|note| *note == warning);
            numbers.push(format!("[{}]", known.unwrap_or(notes.len()) + 1));
            if known.is_none() {
                notes.push(warning);
            }
        }
        if !numbers.is_empty() {
            row.warnings.push(numbers.join(" "));
        }
    }
    let notes = notes.into_iter().enumerate();
    notes.map(|(at, note)| format!("[{}] {note}", at + 1)).collect()
}
