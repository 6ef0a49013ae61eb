//! The map as text: a cell a core, with one mark where all of its CPUs are alike; the CPUs' numbers are at the beginning of each line.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use stelia_cpus::CpuSet;
use stelia_kernel::locality::{Device, size};

use super::marks::{COLOURS, mark};
use super::{Core, CoreGroup, Cpu, CpuOwner, Map, Pod};
use crate::shared::output::{self, TextStyle, columns, counted, cut, printable, shorten};

/// On a node with more pods only those in trouble are listed.
const MAX_LISTED: usize = 48;
/// Columns for the CPUs' numbers of a line.
const NUMBERS: usize = 16;
/// The most columns of a name on a terminal.
const NAME: usize = 40;

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
    /// Where the next one on the line may begin.
    width: usize,
}

impl Piece {
    fn new(text: String, columns: usize) -> Self {
        Self {
            text,
            columns,
            width: columns,
        }
    }
}

impl From<String> for Piece {
    fn from(text: String) -> Self {
        let columns = columns(&text);
        Self::new(text, columns)
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
        let host = (!host.is_empty()).then(|| Piece::new(text.ink(BOLD, &host), columns(&host)));
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

    /// In the colour of a pod.
    fn of_pod(&self, pod: usize, text: &str) -> String {
        let colour = PALETTE.get(pod % COLOURS).copied().unwrap_or_default();
        self.ink(&format!("\x1b[38;5;{colour}m"), text)
    }

    /// Puts pieces on lines; a piece that is wider than a line has one of its own.
    fn flow(&mut self, indent: &str, gap: &str, pieces: impl IntoIterator<Item = Piece>) {
        let (mut used, mut pending) = (0, 0);
        for piece in pieces {
            if used > 0 && used + pending + gap.len() + piece.columns > self.width {
                self.out.push('\n');
                (used, pending) = (0, 0);
            }
            let before = if used == 0 { indent } else { gap };
            self.out.extend([&" ".repeat(pending), before, &piece.text]);
            used += pending + before.len() + piece.columns;
            pending = piece.width - piece.columns;
        }
        if used > 0 {
            self.out.push('\n');
        }
    }

    /// A blank line, a heading, and lines of cores; each L3 cache begins a line.
    fn place(&mut self, place: &CoreGroup<'_>) {
        let by_cache: Vec<&[Core]> = place.by_cache().collect();
        let titles = by_cache.iter().filter_map(|cores| Some(self.map.cache(cores)?.title()));
        let titles: BTreeSet<String> = titles.collect();
        let mut heading = vec![self.ink(BOLD, &format!("socket {} node {}", place.socket, place.node))];
        heading.extend(self.map.nodes.get(&place.node).copied().flatten().map(size));
        heading.extend(titles.first().map(|title| match (by_cache.len(), titles.len()) {
            (1, _) => title.clone(),
            (count, 1) => format!("{count}×{title}"),
            (count, _) => format!("{count}×L3"),
        }));
        let before = if self.out.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.out, "{before}{}", heading.join(", "));

        let (first, next) = if by_cache.len() > 1 {
            (" L3 ", "    ")
        } else {
            (" ", " ")
        };
        let wide = place.cores.iter().map(|core| self.core(core, 0).columns).max();
        let wide = wide.unwrap_or(1);
        let across = self.width.saturating_sub(first.len() + NUMBERS) / (wide + 1);
        let across = if across > 4 { across / 4 * 4 } else { across.max(1) };
        let lines = |cores: &&'_ [Core]| cores.chunks(across).map(|cores| columns(&numbers(cores))).max();
        let before = by_cache.iter().filter_map(lines).max().unwrap_or(0);
        for cores in by_cache {
            for (line, cores) in cores.chunks(across).enumerate() {
                let cells: Vec<String> = cores.iter().map(|core| self.core(core, wide).text).collect();
                let indent = if line == 0 { first } else { next };
                let _ = writeln!(self.out, "{indent}{:<before$} {}", numbers(cores), cells.join(" "));
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
        Piece::new(format!("[{}{blanks}]", marks.join(" ")), columns)
    }

    fn cpu(&self, cpu: &Cpu, mark: &str) -> String {
        match (cpu.whose, mark.strip_suffix('!')) {
            (CpuOwner::Pod(pod), Some(mark)) => self.of_pod(pod, mark) + &self.ink(RED, "!"),
            (CpuOwner::Pod(pod), None) => self.of_pod(pod, mark),
            _ => self.ink(DIM, mark),
        }
    }

    /// `(nvidia.com/gpu B×2) (GPU 0000:3b:00.0 C^)`; of a large node only those that are remote.
    fn devices(&mut self, node: Option<u32>) {
        let is_drawn = |(n, device): &(usize, &Device)| {
            let is_remote = self.map.pods.get(*n).is_some_and(|pod| pod.is_remote(device));
            !self.is_large || is_remote
        };
        let drawn = self.map.devices(node).filter(is_drawn);
        let pieces = drawn.map(|(n, device)| {
            let mark = self.map.device_mark(n, device);
            let room = self.width.saturating_sub(columns(&mark) + 4);
            let name = cut(&printable(&device.name), room);
            let wide = columns(&name) + columns(&mark) + 3;
            Piece::new(format!("({name} {})", self.of_pod(n, &mark)), wide)
        });
        let pieces: Vec<Piece> = pieces.collect();
        if node.is_none() && !pieces.is_empty() {
            self.out.push_str("\ndevices on NUMA nodes without CPUs\n");
        }
        self.flow(" ", " ", pieces);
    }

    /// What the marks mean, and the pods that are drawn; of a large node only those in trouble.
    fn legend(&mut self) {
        let keys = self.map.keys().into_iter();
        let keys = keys.map(|(mark, meaning, _)| Piece::from(format!("{mark} {meaning}")));
        self.out.push('\n');
        self.flow(
            "",
            "   ",
            [Piece::from("[A] a core".to_owned())].into_iter().chain(keys),
        );
        let is_listed = |(_, pod): &(usize, &Pod)| !self.is_large || self.is_in_trouble(pod);
        let drawn = (0..).zip(&self.map.pods).filter(|(_, pod)| !pod.cpus.is_empty());
        let listed: Vec<(usize, &Pod)> = drawn.clone().filter(is_listed).take(MAX_LISTED).collect();
        let most = if self.style.width.is_some() { NAME } else { usize::MAX };
        let signs = listed.iter().map(|(n, pod)| mark(*n).len() + pod.sign().sign.len());
        let signs = signs.max().unwrap_or(0);
        let entries = listed.iter().map(|(n, pod)| {
            let sign = format!("{:<signs$}", mark(*n) + pod.sign().sign);
            let rest = format!(" {} {}", shorten(&printable(&pod.pod.to_string()), most), pod.cpus);
            Piece::new(self.of_pod(*n, &sign) + &rest, columns(&sign) + columns(&rest))
        });
        let mut entries: Vec<Piece> = entries.collect();
        let widest = entries.iter().map(|entry| entry.columns).max().unwrap_or(0);
        entries.iter_mut().for_each(|entry| entry.width = widest);
        let more = drawn.count() - listed.len();
        self.out.push('\n');
        self.flow("", "   ", entries);
        if more > 0 {
            let more = counted(more as u64, "VM");
            let _ = writeln!(self.out, "{more} not listed: steliactl map VM, steliactl list");
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

/// The CPUs of these cores.
fn numbers(cores: &[Core]) -> String {
    let cpus = cores.iter().flat_map(|core| &core.cpus).map(|cpu| cpu.number);
    cut(&cpus.collect::<CpuSet>().to_string(), NUMBERS)
}
