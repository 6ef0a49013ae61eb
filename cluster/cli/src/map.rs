//! `map`: free cores as a picture, NUMA nodes beside each other, nodes below each other. Where nodes are many, those that look
//! alike are one line.

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_table::{Column, Render, TextStyle, column, counted, table};

use crate::cluster::{common_domain, without_domain};
use crate::nodes::{Nodes, Numa, Row};
use crate::objects::Problem;
use crate::prose;
use crate::verdict::listed;

/// Limit of the cells of a NUMA node's bar.
const MAX_BAR_CELLS: u64 = 16;
/// The same limit in lines that stand for many nodes.
const MAX_GROUP_BAR_CELLS: u64 = 8;
/// Limit of the NUMA nodes side by side.
const MAX_NUMA_COLUMNS: usize = 8;
/// Limit of the names in a line that stands for many nodes.
const MAX_NAMED_NODES: usize = 3;

/// The signs of free cores: where VMs are admitted, and on nodes that admit none.
const FREE: char = '.';
const NOT_ADMITTED: char = '-';

/// A line of the picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// How many nodes it stands for.
    pub count: u64,
    /// Their names, of many only the first.
    pub nodes: Vec<String>,
    /// The NUMA nodes; where the line stands for many nodes those of the first, the one with the most free first.
    pub numa: Vec<Numa>,
    /// Whether the nodes admit VMs; else nobody can use what is free.
    pub admits_vms: bool,
    #[serde(skip)]
    bars: Vec<String>,
}

/// The picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Map {
    /// How many nodes tell of their CPUs.
    pub nodes: u64,
    /// Cores of the nodes whose cores are known.
    pub cores: u64,
    pub free_cores: u64,
    /// Those of the free cores that are on nodes that admit no VM.
    pub unavailable_cores: u64,
    /// How many such nodes there are.
    #[serde(skip)]
    pub admitting_none: u64,
    /// Nodes that tell nothing.
    pub unknown: u64,
    /// Whether a line may stand for many nodes.
    pub aggregated: bool,
    pub lines: Vec<Line>,
    /// Nodes that are in none of the lines, because these are as many as asked for.
    pub more: u64,
    pub problems: Vec<Problem>,
}

impl Map {
    /// At most `most` lines.
    pub fn of(nodes: &Nodes, most: usize) -> Self {
        let known: Vec<&Row> = nodes.nodes.iter().filter(|row| !row.numa.is_empty()).collect();
        let sum = |rows: &[&Row], of: fn(&Numa) -> Option<u64>| {
            let numa = rows.iter().flat_map(|row| &row.numa);
            numa.filter_map(of).fold(0, u64::saturating_add)
        };
        let closed: Vec<&Row> = known.iter().copied().filter(|row| row.admits_none).collect();
        let aggregated = known.len() > most;
        let mut lines = if aggregated {
            alike(&known)
        } else {
            known.iter().map(|row| Line::of(row)).collect()
        };
        let more = lines.iter().skip(most).map(|line| line.count).sum();
        lines.truncate(most);
        Self {
            nodes: known.len() as u64,
            cores: sum(&known, |numa| numa.cores),
            free_cores: sum(&known, |numa| numa.free_cores),
            unavailable_cores: sum(&closed, |numa| numa.free_cores),
            admitting_none: closed.len() as u64,
            unknown: (nodes.nodes.len() - known.len()) as u64,
            aggregated,
            lines,
            more,
            problems: nodes.problems.clone(),
        }
    }
}

impl Line {
    fn of(row: &Row) -> Self {
        let is_dense = is_dense(&row.numa);
        let bar = |numa: &Numa| {
            let id = if is_dense {
                String::new()
            } else {
                format!("{}: ", numa.node)
            };
            format!("{id}{} {}", bar(numa, MAX_BAR_CELLS, sign_of(row)), counts(numa))
        };
        Self {
            count: 1,
            nodes: vec![row.name.clone()],
            admits_vms: !row.admits_none,
            bars: row.numa.iter().map(bar).collect(),
            numa: row.numa.clone(),
        }
    }
}

/// Whether each id is its place.
fn is_dense(numa: &[Numa]) -> bool {
    numa.iter().zip(0..).all(|(numa, place)| numa.node == place)
}

/// Free and all, of cores or, where these are not known, of CPUs.
fn shares(numa: &Numa) -> (u64, u64) {
    match (numa.free_cores, numa.cores) {
        (Some(free), Some(all)) => (free, all),
        _ => (numa.free_cpus, numa.cpus),
    }
}

fn counts(numa: &Numa) -> String {
    let (free, all) = shares(numa);
    match numa.cores {
        Some(_) => format!("{free}/{all}"),
        None => format!("{free}/{all} CPUs"),
    }
}

/// The sign of a node's free cores.
fn sign_of(row: &Row) -> char {
    if row.admits_none { NOT_ADMITTED } else { FREE }
}

/// `#` for taken ones and another sign for free ones, a sign for each or for as many as the width asks for. A bar has a free sign if and only if
/// something is free, and a taken one likewise.
fn bar(numa: &Numa, width: u64, sign: char) -> String {
    let (free, all) = shares(numa);
    let free = free.min(all);
    let signs = all.min(width);
    let mut dots = u128::from(free) * u128::from(signs) / u128::from(all.max(1));
    if free > 0 {
        dots = dots.max(1);
    }
    if free < all && signs > 1 {
        dots = dots.min(u128::from(signs) - 1);
    }
    let dots = usize::try_from(dots).unwrap_or(0);
    let signs = usize::try_from(signs).unwrap_or(0);
    let (taken, free) = (
        std::iter::repeat_n('#', signs.saturating_sub(dots)),
        std::iter::repeat_n(sign, dots),
    );
    taken.chain(free).collect()
}

/// Nodes whose bars are the same, whatever the order of their NUMA nodes; those with the most free first, and those that admit no VM last.
fn alike(rows: &[&Row]) -> Vec<Line> {
    let mut groups: BTreeMap<(bool, Vec<String>), Line> = BTreeMap::new();
    for row in rows {
        let mut numa = row.numa.clone();
        numa.sort_by_key(|numa| (std::cmp::Reverse(shares(numa).0), numa.node));
        let bars: Vec<String> = numa
            .iter()
            .map(|numa| bar(numa, MAX_GROUP_BAR_CELLS, sign_of(row)))
            .collect();
        let line = groups.entry((row.admits_none, bars.clone())).or_insert_with(|| Line {
            count: 0,
            nodes: Vec::new(),
            numa,
            admits_vms: !row.admits_none,
            bars,
        });
        line.count += 1;
        // A single further name needs no more room than the sign that there is one.
        if line.nodes.len() <= MAX_NAMED_NODES {
            line.nodes.push(row.name.clone());
        }
    }
    let mut lines: Vec<Line> = groups.into_values().collect();
    let free = |line: &Line| {
        let signs = |bar: &String| bar.matches([FREE, NOT_ADMITTED]).count();
        (line.admits_vms, line.bars.iter().map(signs).collect::<Vec<_>>())
    };
    lines.sort_by(|one, other| free(other).cmp(&free(one)).then_with(|| one.nodes.cmp(&other.nodes)));
    lines
}

/// The NUMA nodes of a line, beside each other.
const NUMA: [&str; MAX_NUMA_COLUMNS] = [
    "NUMA 0", "NUMA 1", "NUMA 2", "NUMA 3", "NUMA 4", "NUMA 5", "NUMA 6", "NUMA 7",
];
/// Titles where the ids of NUMA nodes have gaps: each cell has its own id then.
const NUMA_TITLES_WITH_GAPS: [&str; MAX_NUMA_COLUMNS] = ["NUMA", "", "", "", "", "", "", ""];
/// Titles in lines that stand for many nodes, where NUMA nodes are sorted.
const SORTED_NUMA_TITLES: [&str; MAX_NUMA_COLUMNS] = ["MOST FREE", "2ND", "3RD", "4TH", "5TH", "6TH", "7TH", "8TH"];

fn cell<const AT: usize>(line: &Line) -> String {
    let more = line.bars.len() > MAX_NUMA_COLUMNS && AT == MAX_NUMA_COLUMNS - 1;
    let bar = line.bars.get(AT).cloned().unwrap_or_default();
    if more { format!("{bar} …") } else { bar }
}

const CELLS: [fn(&Line) -> String; MAX_NUMA_COLUMNS] = [
    cell::<0>, cell::<1>, cell::<2>, cell::<3>, cell::<4>, cell::<5>, cell::<6>, cell::<7>,
];

/// The names of the nodes that a line stands for, with a sign that there are more.
fn such_as(line: &Line) -> String {
    let names: Vec<&str> = line.nodes.iter().map(String::as_str).collect();
    listed(&names, line.count, MAX_NAMED_NODES)
}

impl Render for Map {
    fn text(&self, style: TextStyle) -> String {
        if self.nodes == 0 {
            return "No nodes with CPUs that are known.\n".to_owned();
        }
        let beside = self
            .lines
            .iter()
            .map(|line| line.bars.len())
            .max()
            .unwrap_or(0)
            .min(MAX_NUMA_COLUMNS);
        let mut lines = self.lines.iter();
        let headings = if self.aggregated {
            SORTED_NUMA_TITLES
        } else if lines.all(|line| is_dense(&line.numa)) {
            NUMA
        } else {
            NUMA_TITLES_WITH_GAPS
        };
        let mut columns: Vec<Column<Line>> = if self.aggregated {
            vec![column("NODES", |line: &Line| line.count.to_string()).right()]
        } else {
            vec![column("NODE", |line: &Line| line.nodes.concat()).yields(1).shortens()]
        };
        let cells = headings.into_iter().zip(CELLS).take(beside);
        columns.extend(cells.map(|(heading, cell)| column(heading, cell)));
        if self.aggregated {
            columns.push(column("SUCH AS", such_as).wraps());
        }
        let mut shown = self.lines.clone();
        let names = || self.lines.iter().flat_map(|line| &line.nodes);
        if style.width.is_some() && common_domain(names().map(String::as_str)).is_some() {
            let names = shown.iter_mut().flat_map(|line| &mut line.nodes);
            names.for_each(|name| name.truncate(without_domain(name).len()));
        }
        let mut text = table(&columns, &shown, style);
        if self.more > 0 {
            let sentence = format!("… and {} in other lines (--rows)", counted(self.more, "node"));
            text += &prose(&sentence, style);
        }
        if style.legend {
            let unknown = match self.unknown {
                0 => String::new(),
                unknown => format!("; nothing is known of {}", counted(unknown, "node")),
            };
            let closed = match self.admitting_none {
                0 => String::new(),
                closed => {
                    let (cores, closed) = (self.unavailable_cores, counted(closed, "node"));
                    format!(", - free on a node that admits no VM ({cores} more on {closed})")
                }
            };
            let free = self.free_cores.saturating_sub(self.unavailable_cores);
            let (nodes, all) = (counted(self.nodes, "node"), self.cores);
            let sentence =
                format!("{nodes}: {free} of {all} whole cores free. # taken or reserved, . free{closed}{unknown}");
            text.push('\n');
            text += &prose(&sentence, style);
        }
        text
    }

    fn names(&self) -> Vec<String> {
        self.lines.iter().flat_map(|line| line.nodes.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
