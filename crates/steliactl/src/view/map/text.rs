//! The map as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use stelia_kernel::locality::{Device, size};

use super::marks::{COLOURS, columns, cut, device_mark, keys, mark, tail};
use super::{Core, CoreGroup, Cpu, CpuOwner, Map};
use crate::shared::output::{self, Column, TextStyle, column, printable};

/// What the map is written on.
pub(super) struct Paper {
    pub width: usize,
    /// Whether the cells of the table below the map are cut to the width.
    pub cut: bool,
    pub coloured: bool,
    /// Whether there are a heading, a legend and column headings.
    pub legend: bool,
}

/// A palette that is readable on dark and on light, without red, yellow and green, which have meanings.
const PALETTE: [u8; COLOURS] = [33, 172, 134, 37, 169, 137, 63, 74, 163, 103];
const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[1;31m";
const END: &str = "\x1b[0m";

impl Paper {
    fn ink(&self, code: &str, text: &str) -> String {
        if self.coloured && !code.is_empty() {
            format!("{code}{text}{END}")
        } else {
            text.to_owned()
        }
    }

    fn pod(&self, pod: usize, text: &str) -> String {
        let colour = PALETTE.get(pod % COLOURS).copied().unwrap_or_default();
        self.ink(&format!("\x1b[38;5;{colour}m"), text)
    }
}

/// Something that is not broken between lines: as it is written, and its width without colours.
struct Piece {
    text: String,
    columns: usize,
}

impl Piece {
    fn plain(text: String) -> Self {
        let columns = columns(&text);
        Self { text, columns }
    }
}

/// Puts pieces on lines of at most `width` columns; a piece that is wider has a line of its own.
fn flow(out: &mut String, indent: &str, gap: &str, width: usize, pieces: impl IntoIterator<Item = Piece>) {
    let mut used = 0;
    for piece in pieces {
        if used > 0 && used + gap.len() + piece.columns > width {
            out.push('\n');
            used = 0;
        }
        let before = if used == 0 { indent } else { gap };
        out.push_str(before);
        out.push_str(&piece.text);
        used += before.len() + piece.columns;
    }
    if used > 0 {
        out.push('\n');
    }
}

/// The map, at most as wide as the paper unless one core alone is wider.
pub(super) fn draw(map: &Map, paper: &Paper) -> String {
    let mut out = String::new();
    if paper.legend {
        let host = Piece {
            text: paper.ink(BOLD, &printable(&map.host)),
            columns: columns(&map.host),
        };
        let pieces = [host, Piece::plain(map.time()), Piece::plain(map.extent())];
        let pieces = pieces.into_iter().filter(|piece| piece.columns > 0);
        flow(&mut out, "", "  ", paper.width, pieces);
        out.push('\n');
    }
    let cells = Cells::of(map);
    for place in map.places() {
        place_text(&mut out, map, paper, &cells, &place);
        if place.is_first {
            devices(&mut out, map, paper, Some(place.node));
        }
    }
    devices(&mut out, map, paper, None);
    if let Some(why) = map.devices_unknown.as_ref().filter(|_| paper.legend) {
        let _ = writeln!(out, "\nkubelet's devices are not known: {}", printable(why));
    }
    if paper.legend {
        out.push('\n');
        let keys = keys(map).into_iter();
        let keys = keys.map(|key| Piece::plain(format!("{} {}", key.mark, key.meaning)));
        flow(&mut out, "", "   ", paper.width, keys);
    }
    if !map.pods.is_empty() {
        out.push('\n');
        table(&mut out, map, paper);
    }
    out
}

/// The widths that all cells of a map share, so that columns are below each other.
struct Cells {
    digits: usize,
    tail: usize,
}

impl Cells {
    fn of(map: &Map) -> Self {
        Self {
            digits: map.cpus().map(|cpu| cpu.number.to_string().len()).max().unwrap_or(1),
            tail: map.cpus().map(|cpu| tail(map, cpu).len()).max().unwrap_or(1),
        }
    }

    fn core(&self, map: &Map, paper: &Paper, core: &Core) -> Piece {
        let cells: Vec<String> = core.cpus.iter().map(|cpu| self.cpu(map, paper, cpu)).collect();
        let columns = core.cpus.len() * (self.digits + self.tail + 1) + 1;
        let text = format!("[{}]", cells.join(" "));
        Piece { text, columns }
    }

    fn cpu(&self, map: &Map, paper: &Paper, cpu: &Cpu) -> String {
        let (number, tail) = (format!("{:>1$}", cpu.number, self.digits), tail(map, cpu));
        let rest = " ".repeat(self.tail.saturating_sub(tail.len()));
        let shown = match (cpu.whose, tail.strip_suffix('!')) {
            (CpuOwner::Pod(pod), Some(mark)) => paper.pod(pod, &(number + mark)) + &paper.ink(RED, "!"),
            (CpuOwner::Pod(pod), None) => paper.pod(pod, &(number + &tail)),
            _ => paper.ink(DIM, &(number + &tail)),
        };
        shown + &rest
    }
}

fn place_text(out: &mut String, map: &Map, paper: &Paper, cells: &Cells, place: &CoreGroup<'_>) {
    let by_cache: Vec<&[Core]> = place.cores.chunk_by(|a, b| a.cache == b.cache).collect();
    let title = |cores: &[Core]| {
        let cache = cores.first().and_then(|core| map.caches.get(core.cache?))?;
        Some((cache.title(), cache.cpus.to_string()))
    };
    let mut heading = vec![paper.ink(BOLD, &format!("socket {} node {}", place.socket, place.node))];
    heading.extend(map.nodes.get(&place.node).copied().flatten().map(size));
    if let [only] = by_cache.as_slice() {
        heading.extend(title(only).map(|(title, _)| title));
    }
    out.push_str(&heading.join(", "));
    out.push('\n');
    for cores in &by_cache {
        if by_cache.len() > 1 {
            let (title, cpus) = title(cores).unwrap_or_else(|| ("no L3 known".to_owned(), String::new()));
            let cpus = if cpus.is_empty() {
                cpus
            } else {
                format!(", CPUs {cpus}")
            };
            let _ = writeln!(out, " {title}{cpus}");
        }
        let indent = if by_cache.len() > 1 { "  " } else { " " };
        let pieces = cores.iter().map(|core| cells.core(map, paper, core));
        flow(out, indent, " ", paper.width, pieces);
    }
}

/// `(nvidia.com/gpu A B×2) (GPU 0000:3b:00.0 C^)`
fn devices(out: &mut String, map: &Map, paper: &Paper, node: Option<u32>) {
    let mut by_name: BTreeMap<&str, Vec<(usize, &Device)>> = BTreeMap::new();
    for (pod, device) in map.devices(node) {
        by_name.entry(&device.name).or_default().push((pod, device));
    }
    if node.is_none() && !by_name.is_empty() {
        out.push_str("devices on NUMA nodes without CPUs\n");
    }
    let mut pieces = Vec::new();
    for (name, pods) in by_name {
        for (n, (pod, device)) in pods.iter().enumerate() {
            let count = if device.count == 1 {
                String::new()
            } else {
                format!("×{}", device.count)
            };
            let mark = device_mark(map, *pod, device) + &count;
            let after = if n + 1 == pods.len() { ")" } else { "" };
            let room = paper.width.saturating_sub(columns(&mark) + 4);
            let before = if n == 0 {
                format!("({} ", cut(&printable(name), room))
            } else {
                String::new()
            };
            pieces.push(Piece {
                columns: columns(&before) + columns(&mark) + after.len(),
                text: before + &paper.pod(*pod, &mark) + after,
            });
        }
    }
    flow(out, " ", " ", paper.width, pieces);
}

/// The mark, the name, the CPUs and the state.
const PODS: [Column<[String; 4]>; 4] = [
    column("MARK", |[mark, ..]| mark.clone()),
    column("POD", |[_, pod, ..]: &[String; 4]| pod.clone())
        .yields(1)
        .shortens(),
    column("CPUS", |[_, _, cpus, _]| cpus.clone()),
    column("STATE", |[.., state]| state.clone()),
];

fn table(out: &mut String, map: &Map, paper: &Paper) {
    let rows = map.pods.iter().enumerate();
    let rows: Vec<_> = rows
        .map(|(n, pod)| [mark(n), pod.pod.to_string(), pod.cpus.to_string(), pod.state()])
        .collect();
    let style = TextStyle {
        legend: paper.legend,
        width: paper.cut.then_some(paper.width),
        ..TextStyle::default()
    };
    let text = output::table(&PODS, &rows, style);
    let mut lines = text.lines();
    if paper.legend {
        out.extend([lines.next().unwrap_or_default(), "\n"]);
    }
    for (n, line) in lines.enumerate() {
        let (mark, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
        let _ = writeln!(out, "{}{rest}", paper.pod(n, mark));
    }
}
