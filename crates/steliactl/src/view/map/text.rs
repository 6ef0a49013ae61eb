//! The map as text: a cell a core, with one mark where all of its CPUs are alike; each row begins with its first CPU.

use std::collections::BTreeSet;

use stelia_kernel::locality::size;

use super::{Core, Cpu, Map, Pod, signs};
use crate::shared::output::{self, Column, TextStyle, column, counted, paragraph, printable, table};
use crate::view::list::node_lines;

/// On a terminal, of more pods only those that are not isolated are listed.
const MAX_LISTED: usize = 20;
/// The cores of a row: as many as fit.
const ROWS: [usize; 4] = [16, 8, 4, 2];

pub(super) const PODS: [Column<Pod>; 4] = [
    column("MARK", |pod: &Pod| pod.mark.text.clone()),
    column("POD", |pod: &Pod| pod.pod.to_string()).yields(2).shortens(),
    column("STATE", |pod: &Pod| pod.state.clone()).means(|pod| pod.mark.meaning),
    column("CPUS", |pod: &Pod| pod.cpus.to_string()).yields(1),
];

/// The map, at most as wide as the terminal unless one core alone is wider.
pub(super) fn draw(map: &Map, style: TextStyle) -> String {
    let lines = TextStyle {
        width: style.width.or_else(|| Some(output::width())),
        ..style
    };
    let wide = map.cores.iter().map(cell_width).max().unwrap_or(1);
    let numa_nodes: Vec<String> = map
        .numa_nodes()
        .map(|cores| numa_node(map, cores, wide, lines))
        .collect();
    if !style.legend {
        return numa_nodes.join("\n");
    }
    let most = style.width.map_or(usize::MAX, |_| MAX_LISTED);
    let is_listed = |pod: &&Pod| map.pods.len() <= most || pod.mark.sign != signs::ISOLATED;
    let listed: Vec<&Pod> = map.pods.iter().filter(is_listed).take(most).collect();
    let host = Some(&map.host).filter(|host| !host.is_empty());
    let host = host.map(|host| format!("{host}  ")).unwrap_or_default();
    let heading = paragraph(&printable(&format!("{host}{}", map.extent())), lines);
    let parts = numa_nodes.into_iter().chain([legend(map, &listed, lines)]);
    let mut text = node_lines(&map.problems, style) + &heading;
    text.extend(parts.map(|part| format!("\n{part}")));
    if !listed.is_empty() {
        text += &format!("\n{}", table(&PODS, listed.iter().copied(), style));
    }
    if let others @ 1.. = map.pods.len() - listed.len() {
        text += &format!("{} not listed: steliactl map -l\n", counted(others as u64, "other pod"));
    }
    text
}

/// What the signs on this map or beside the listed pods mean, and no others.
fn legend(map: &Map, listed: &[&Pod], style: TextStyle) -> String {
    let has_threads = map.cores.iter().any(|core| core.cpus.len() > 1);
    let cores = has_threads.then_some(("[A B]", "the threads of a core, [A] if they are alike"));
    let signs = map.signs(listed.iter().copied()).into_iter();
    let signs = cores.into_iter().chain(signs.map(|sign| (sign.text, sign.meaning)));
    // A sign stays beside its meaning.
    let signs = signs.map(|(sign, meaning)| format!("{sign} {meaning}").replace(' ', "\u{a0}"));
    let signs: Vec<String> = signs.collect();
    let caches = if has_several_caches(&map.cores) {
        ", L3 where a cache begins"
    } else {
        ""
    };
    let text = format!("A row names its first CPU{caches}. {}", signs.join(", "));
    paragraph(&text, style).replace('\u{a0}', " ")
}

/// Whether a NUMA node has several L3 caches, so that rows say where one begins.
fn has_several_caches(cores: &[Core]) -> bool {
    let mut neighbours = cores.windows(2);
    neighbours.any(|pair| matches!(pair, [a, b] if (a.socket, a.node) == (b.socket, b.node) && a.l3 != b.l3))
}

/// "socket 0, NUMA 1, 64.0 GiB, L3 32.0 MiB".
pub(super) fn heading(map: &Map, cores: &[Core]) -> String {
    let (socket, node) = cores.first().map_or((0, 0), |core| (core.socket, core.node));
    let mut heading = vec![format!("socket {socket}, NUMA {node}")];
    heading.extend(map.memory_bytes.get(&node).copied().flatten().map(size));
    let caches = cores.iter().filter_map(|core| Some(core.l3.as_ref()?.title()));
    heading.extend(caches.collect::<BTreeSet<_>>());
    heading.join(", ")
}

/// The number of a core's first CPU.
fn number(core: &Core) -> u32 {
    core.cpus.first().map_or(0, |cpu| cpu.cpu)
}

/// How wide the name of each row is.
pub(super) fn label_width(map: &Map) -> usize {
    let digits = map.cores.iter().map(number).max().unwrap_or(0).to_string().len();
    let cache = if has_several_caches(&map.cores) { "L3 ".len() } else { 0 };
    cache + "CPU ".len() + digits
}

/// The lines of a NUMA node: a name and cores of this width, as many as fit beside it. Each L3 cache begins one.
pub(super) fn rows<'a>(map: &Map, cores: &'a [Core], wide: usize, room: usize) -> Vec<(String, &'a [Core])> {
    let across = ROWS.into_iter().find(|across| across * wide <= room).unwrap_or(1);
    let width = label_width(map);
    let name = |at: usize, cores: &[Core]| {
        let cache = match at {
            _ if !has_several_caches(&map.cores) => "",
            0 if cores.iter().any(|core| core.l3.is_some()) => "L3 ",
            _ => "   ",
        };
        format!("{:<width$}", format!("{cache}CPU {}", cores.first().map_or(0, number)))
    };
    let by_cache = cores.chunk_by(|a, b| a.l3 == b.l3);
    let rows = by_cache.flat_map(|cores| (0..).zip(cores.chunks(across)));
    rows.map(|(at, cores)| (name(at, cores), cores)).collect()
}

/// The heading of a NUMA node and its lines of cores.
fn numa_node(map: &Map, cores: &[Core], wide: usize, style: TextStyle) -> String {
    let mut text = heading(map, cores) + "\n";
    let room = style
        .width
        .unwrap_or_default()
        .saturating_sub(" ".len() + label_width(map));
    for (name, cores) in rows(map, cores, wide + 1, room) {
        let cells: Vec<String> = cores.iter().map(|core| cell(core, wide, style)).collect();
        text += &format!(" {name} {}\n", cells.join(" "));
    }
    text
}

/// The CPUs of a core that are written: one where all are alike.
fn written(core: &Core) -> &[Cpu] {
    match core.cpus.split_first() {
        Some((first, others)) if others.iter().all(|cpu| cpu.mark.text == first.mark.text) => {
            std::slice::from_ref(first)
        }
        _ => &core.cpus,
    }
}

fn cell_width(core: &Core) -> usize {
    written(core).iter().map(|cpu| cpu.mark.text.len() + 1).sum::<usize>() + 1
}

/// `[A ]`, `[A B]`; in a cell of at least this width.
fn cell(core: &Core, width: usize, style: TextStyle) -> String {
    let marks = written(core)
        .iter()
        .map(|cpu| cpu.mark.meaning.paint(&cpu.mark.text, style));
    let marks: Vec<String> = marks.collect();
    let blanks = " ".repeat(width.saturating_sub(cell_width(core)));
    format!("[{}{blanks}]", marks.join(" "))
}
