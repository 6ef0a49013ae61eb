//! The map as text: a cell a core, with one mark where all of its CPUs are alike; the CPUs' numbers are at the beginning of each line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use stelia_cpus::CpuSet;
use stelia_kernel::locality::{Device, size};

use super::marks::{COLOURS, mark};
use super::{Core, CoreGroup, Cpu, CpuOwner, Map, Pod};
use crate::shared::output::{self, TextStyle, columns, counted, cut, printable, shorten};

/// On a node with more pods only those in trouble are listed.
const MAX_LISTED: usize = 24;
/// The least columns of a name.
const MIN_NAME: usize = 16;

/// A palette that is readable on dark and on light, without red, yellow and green, which have meanings.
const PALETTE: [u8; COLOURS] = [33, 172, 134, 37, 169, 137, 63, 74, 163, 103];
const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[1;31m";
const END: &str = "\x1b[0m";

/// Something that is not broken between lines: as it is written, and its width without colours.
struct Piece {
    text: String,
    columns: usize,
}

impl From<String> for Piece {
    fn from(text: String) -> Self {
        let columns = columns(&text);
        Self { text, columns }
    }
}

/// The map, at most as wide as the terminal unless one core alone is wider.
pub(super) fn draw(map: &Map, style: TextStyle) -> String {
    let mut text = Text {
        map,
        style,
        width: style.width.unwrap_or_else(output::width),
        is_large: map.pods.len() > MAX_LISTED,
        out: String::new(),
    };
    if style.legend {
        let host = printable(&map.host);
        let host = (!host.is_empty()).then(|| text.piece(BOLD, &host));
        text.flow("", "  ", host.into_iter().chain([Piece::from(map.extent())]));
    }
    for place in map.places() {
        text.place(&place);
        if place.is_first {
            text.devices(Some(place.node));
        }
    }
    text.devices(None);
    if style.legend {
        text.legend();
    }
    text.out
}

struct Text<'a> {
    map: &'a Map,
    style: TextStyle,
    width: usize,
    /// Whether what is not in trouble is only counted.
    is_large: bool,
    out: String,
}

impl Text<'_> {
    fn ink(&self, code: &str, text: &str) -> String {
        if self.style.coloured {
            format!("{code}{text}{END}")
        } else {
            text.to_owned()
        }
    }

    fn piece(&self, code: &str, text: &str) -> Piece {
        Piece {
            text: self.ink(code, text),
            columns: columns(text),
        }
    }

    /// In the colour of a pod.
    fn of_pod(&self, pod: usize, text: &str) -> String {
        let colour = PALETTE.get(pod % COLOURS).copied().unwrap_or_default();
        self.ink(&format!("\x1b[38;5;{colour}m"), text)
    }

    /// Puts pieces on lines; a piece that is wider than a line has one of its own.
    fn flow(&mut self, indent: &str, gap: &str, pieces: impl IntoIterator<Item = Piece>) {
        let mut used = 0;
        for piece in pieces {
            if used > 0 && used + gap.len() + piece.columns > self.width {
                self.out.push('\n');
                used = 0;
            }
            let before = if used == 0 { indent } else { gap };
            self.out.extend([before, &piece.text]);
            used += before.len() + piece.columns;
        }
        if used > 0 {
            self.out.push('\n');
        }
    }

    /// A blank line, a heading, and lines of cores; each L3 cache begins a line.
    fn place(&mut self, place: &CoreGroup<'_>) {
        let by_cache: Vec<&[Core]> = place.by_cache().collect();
        let titles: BTreeSet<String> = by_cache
            .iter()
            .filter_map(|cores| Some(self.map.cache(cores)?.title()))
            .collect();
        let mut heading = vec![self.ink(BOLD, &format!("socket {} node {}", place.socket, place.node))];
        heading.extend(self.map.nodes.get(&place.node).copied().flatten().map(size));
        match titles.first() {
            Some(title) if by_cache.len() == 1 => heading.push(title.clone()),
            Some(title) if titles.len() == 1 => heading.push(format!("{}×{title}", by_cache.len())),
            Some(_) => heading.push(format!("{}×L3", by_cache.len())),
            None => {}
        }
        let before = if self.out.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.out, "{before}{}", heading.join(", "));

        let (first, next) = if by_cache.len() > 1 {
            (" L3 ", "    ")
        } else {
            (" ", " ")
        };
        let wide = place
            .cores
            .iter()
            .map(|core| self.core(core, 0).columns)
            .max()
            .unwrap_or(1);
        let longest = by_cache.iter().map(|cores| cores.len()).max().unwrap_or(1);
        let numbers = |across: usize| {
            let lines = by_cache.iter().flat_map(|cores| cores.chunks(across));
            lines.map(|cores| numbers_of(cores).len()).max().unwrap_or(0)
        };
        let fits = |across: &usize| first.len() + numbers(*across) + across * (wide + 1) <= self.width;
        let is_round = |across: &usize| *across < 4 || across.is_multiple_of(4) || *across == longest;
        let across = (1..=longest).rev().filter(is_round).find(fits).unwrap_or(1);
        let before = numbers(across);
        for cores in by_cache {
            for (line, cores) in cores.chunks(across).enumerate() {
                let cells: Vec<String> = cores.iter().map(|core| self.core(core, wide).text).collect();
                let indent = if line == 0 { first } else { next };
                let _ = writeln!(self.out, "{indent}{:<before$} {}", numbers_of(cores), cells.join(" "));
            }
        }
    }

    /// `[A ]`, `[A B]`; in a cell of at least this width.
    fn core(&self, core: &Core, width: usize) -> Piece {
        let mut marks: Vec<(&Cpu, String)> = core.cpus.iter().map(|cpu| (cpu, self.map.cpu_mark(cpu))).collect();
        if marks
            .iter()
            .all(|(_, mark)| Some(mark) == marks.first().map(|(_, first)| first))
        {
            marks.truncate(1);
        }
        let columns: usize = marks.iter().map(|(_, mark)| mark.len() + 1).sum::<usize>() + 1;
        let marks: Vec<String> = marks.into_iter().map(|(cpu, mark)| self.cpu(cpu, &mark)).collect();
        let blanks = " ".repeat(width.saturating_sub(columns));
        Piece {
            text: format!("[{}{blanks}]", marks.join(" ")),
            columns,
        }
    }

    fn cpu(&self, cpu: &Cpu, mark: &str) -> String {
        match (cpu.whose, mark.strip_suffix('!')) {
            (CpuOwner::Pod(pod), Some(mark)) => self.of_pod(pod, mark) + &self.ink(RED, "!"),
            (CpuOwner::Pod(pod), None) => self.of_pod(pod, mark),
            _ => self.ink(DIM, mark),
        }
    }

    /// `(nvidia.com/gpu A B×2) (GPU 0000:3b:00.0 C^)`; of a large node only those that are remote.
    fn devices(&mut self, node: Option<u32>) {
        let is_drawn = |(n, device): &(usize, &Device)| {
            let is_remote = self.map.pods.get(*n).is_some_and(|pod| pod.is_remote(device));
            !self.is_large || is_remote
        };
        let mut by_name: BTreeMap<&str, Vec<(usize, &Device)>> = BTreeMap::new();
        for (pod, device) in self.map.devices(node).filter(is_drawn) {
            by_name.entry(&device.name).or_default().push((pod, device));
        }
        if node.is_none() && !by_name.is_empty() {
            self.out.push_str("\ndevices on NUMA nodes without CPUs\n");
        }
        let mut pieces = Vec::new();
        for (name, pods) in by_name {
            let mut before = format!("({} ", printable(name));
            for (n, (pod, device)) in pods.iter().enumerate() {
                let mark = self.map.device_mark(*pod, device);
                let after = if n + 1 == pods.len() { ")" } else { "" };
                let before = cut(
                    &std::mem::take(&mut before),
                    self.width.saturating_sub(columns(&mark) + 3),
                );
                pieces.push(Piece {
                    columns: columns(&before) + columns(&mark) + after.len(),
                    text: before + &self.of_pod(*pod, &mark) + after,
                });
            }
        }
        self.flow(" ", " ", pieces);
    }

    /// What the marks mean, and the pods that are drawn; of a large node only those in trouble.
    fn legend(&mut self) {
        self.out.push('\n');
        let keys = self.map.keys().into_iter();
        let keys = keys.map(|(mark, meaning, _)| Piece::from(format!("{mark} {meaning}")));
        self.flow("", "   ", keys);
        let drawn = (0..)
            .zip(&self.map.pods)
            .filter(|(_, pod)| !pod.cpus.is_empty() || !pod.devices.is_empty());
        let drawn: Vec<(usize, &Pod)> = drawn.collect();
        let mut listed = drawn.clone();
        if self.is_large {
            listed.retain(|(_, pod)| self.is_in_trouble(pod));
            listed.truncate(MAX_LISTED);
        }
        let name = |pod: &Pod| printable(&pod.pod.to_string());
        let widest = |of: &dyn Fn(&(usize, &Pod)) -> usize| listed.iter().map(of).max().unwrap_or(0);
        let marks = widest(&|(n, pod)| mark(*n).len() + pod.sign().sign.len());
        let cpus = widest(&|(_, pod)| pod.cpus.to_string().len());
        let names = widest(&|(_, pod)| columns(&name(pod)));
        let room = self.width.saturating_sub(marks + cpus + 2).max(MIN_NAME);
        let names = if self.style.width.is_some() {
            names.min(room)
        } else {
            names
        };
        let entry = |(n, pod): &(usize, &Pod)| {
            let mark = mark(*n) + pod.sign().sign;
            let name = shorten(&name(pod), names);
            let blanks = |text: &str, width: usize| " ".repeat(width.saturating_sub(columns(text)));
            Piece {
                columns: marks + names + cpus + 2,
                text: format!(
                    "{}{} {name}{} {:<cpus$}",
                    self.of_pod(*n, &mark),
                    blanks(&mark, marks),
                    blanks(&name, names),
                    pod.cpus.to_string()
                ),
            }
        };
        let entries: Vec<Piece> = listed.iter().map(entry).collect();
        self.out.push('\n');
        let begin = self.out.len();
        self.flow("", "   ", entries);
        // Nothing stands behind the last text.
        let lines: Vec<&str> = self.out[begin..].lines().map(str::trim_end).collect();
        let lines = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        self.out.truncate(begin);
        self.out += &lines;
        let more = drawn.len() - listed.len();
        if more > 0 {
            let _ = writeln!(
                self.out,
                "{} not listed: steliactl map VM, steliactl list",
                counted(more as u64, "VM")
            );
        }
        if let Some(why) = &self.map.devices_unknown {
            let _ = writeln!(self.out, "Devices are not known: {}", printable(why));
        }
    }

    fn is_in_trouble(&self, pod: &Pod) -> bool {
        let is_interrupted = !pod.cpus.is_disjoint(&self.map.interrupted);
        !pod.sign().sign.is_empty() || is_interrupted || pod.devices.iter().any(|device| pod.is_remote(device))
    }
}

fn numbers_of(cores: &[Core]) -> String {
    let cpus = cores.iter().flat_map(|core| &core.cpus).map(|cpu| cpu.number);
    cpus.collect::<CpuSet>().to_string()
}
