//! The map as text: a cell a core, with one mark where all of its CPUs are alike; each row begins with the number of its first CPU.

use std::collections::BTreeSet;

use stelia_kernel::locality::size;

use super::{Core, Cpu, Map, Pod, PodDevice};
use crate::shared::output::{self, Column, TextStyle, column, counted, paragraph, printable, table};
use crate::view::list::node_lines;

/// On a node with more pods only those in trouble are listed.
const MAX_LISTED: usize = 20;
/// The cores of a row: as many as fit.
const ROWS: [usize; 4] = [16, 8, 4, 2];

pub(super) const PODS: [Column<Pod>; 5] = [
    column("MARK", |pod: &Pod| pod.drawn.mark.clone()),
    column("POD", |pod: &Pod| pod.pod.to_string()).yields(2).shortens(),
    column("STATE", |pod: &Pod| pod.state.clone()).means(|pod| pod.drawn.meaning),
    column("CPUS", |pod: &Pod| pod.cpus.to_string()).yields(1),
    column("DEVICES", devices).yields(3).or_nothing(),
];

fn devices(pod: &Pod) -> String {
    let one = |device: &PodDevice| format!("{}{} (NUMA {})", device.name, device.sign(), device.node);
    pod.devices.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The map, at most as wide as the terminal unless one core alone is wider.
pub(super) fn draw(map: &Map, style: TextStyle) -> String {
    let lines = TextStyle {
        width: style.width.or_else(|| Some(output::width())),
        ..style
    };
    let mut text = String::new();
    if style.legend {
        let host = Some(&map.host).filter(|host| !host.is_empty());
        let host = host.map(|host| format!("{host}  ")).unwrap_or_default();
        text += &node_lines(&map.problems, style);
        text += &paragraph(&printable(&format!("{host}{}", map.extent())), lines);
    }
    let wide = map.cores.iter().map(cell_width).max().unwrap_or(1);
    for cores in map.cores.chunk_by(|a, b| (a.socket, a.node) == (b.socket, b.node)) {
        let before = if text.is_empty() { "" } else { "\n" };
        text += &format!("{before}{}", place(map, cores, wide, lines));
    }
    if !style.legend {
        return text;
    }
    let mut keys = "Rows begin with their first CPU. [A B] a core with two threads, [A] if both are alike".to_owned();
    for [mark, meaning, _] in &map.keys {
        // A mark stays beside its meaning.
        keys += &format!(", {}", format!("{mark} {meaning}").replace(' ', "\u{a0}"));
    }
    text += &format!("\n{}", paragraph(&keys, lines).replace('\u{a0}', " "));
    let is_listed = |pod: &&Pod| map.pods.len() <= MAX_LISTED || is_in_trouble(pod);
    let listed: Vec<&Pod> = map.pods.iter().filter(is_listed).take(MAX_LISTED).collect();
    if !listed.is_empty() {
        text += &format!("\n{}", table(&PODS, listed.iter().copied(), style));
    }
    let more = map.pods.len() - listed.len();
    if more > 0 {
        text += &format!("{} not listed: steliactl list\n", counted(more as u64, "more pod"));
    }
    if let Some(why) = &map.devices_unknown {
        text += &paragraph(&format!("Devices are not known: {}", printable(why)), style);
    }
    text
}

/// Whether its looks say more than that it is isolated.
fn is_in_trouble(pod: &Pod) -> bool {
    !pod.look.sign.is_empty() || pod.devices.iter().any(|device| device.remote)
}

/// A heading, and lines of cores; each L3 cache begins a line.
fn place(map: &Map, cores: &[Core], wide: usize, style: TextStyle) -> String {
    let Some(Core { socket, node, .. }) = cores.first() else {
        return String::new();
    };
    let by_cache: Vec<&[Core]> = cores.chunk_by(|a, b| a.l3 == b.l3).collect();
    let mut heading = vec![format!("socket {socket}, NUMA {node}")];
    heading.extend(map.memory_bytes.get(node).copied().flatten().map(size));
    let caches: BTreeSet<String> = cores
        .iter()
        .filter_map(|core| Some(core.l3.as_ref()?.title()))
        .collect();
    heading.extend(caches);
    let mut text = heading.join(", ") + "\n";
    let (first, next) = if by_cache.len() > 1 {
        (" L3 ", "    ")
    } else {
        (" ", " ")
    };
    let number = |core: &Core| core.cpus.first().map_or(0, |cpu| cpu.cpu);
    let before = map.cores.iter().map(number).max().unwrap_or(0).to_string().len();
    let room = style.width.unwrap_or_default().saturating_sub(first.len() + before);
    let fits = |across: &usize| across * (wide + 1) <= room;
    let across = ROWS.into_iter().find(fits).unwrap_or(1);
    for (at, cores) in by_cache.iter().flat_map(|cores| (0..).zip(cores.chunks(across))) {
        let cells: Vec<String> = cores.iter().map(|core| cell(core, wide, style)).collect();
        let indent = if at == 0 { first } else { next };
        let number = cores.first().map_or(0, number);
        text += &format!("{indent}{number:>before$} {}\n", cells.join(" "));
    }
    text
}

/// The CPUs of a core that are written: one where all are alike.
fn written(core: &Core) -> &[Cpu] {
    match core.cpus.split_first() {
        Some((first, others)) if others.iter().all(|cpu| cpu.drawn.mark == first.drawn.mark) => {
            std::slice::from_ref(first)
        }
        _ => &core.cpus,
    }
}

fn cell_width(core: &Core) -> usize {
    written(core).iter().map(|cpu| cpu.drawn.mark.len() + 1).sum::<usize>() + 1
}

/// `[A ]`, `[A B]`; in a cell of at least this width.
fn cell(core: &Core, width: usize, style: TextStyle) -> String {
    let marks = written(core)
        .iter()
        .map(|cpu| cpu.drawn.meaning.paint(&cpu.drawn.mark, style));
    let marks: Vec<String> = marks.collect();
    let blanks = " ".repeat(width.saturating_sub(cell_width(core)));
    format!("[{}{blanks}]", marks.join(" "))
}
