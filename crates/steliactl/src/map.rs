//! `map`: the node drawn, from sockets down to siblings, each CPU marked by its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Serialize, Serializer};
use stelia_cpus::CpuSet;

use super::client::Failure;
use super::node::{Description, Owner, owner, state_and_class};
use super::view::{self, Render, column};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Core {
    pub socket: u32,
    pub node: u32,
    /// Core, within the socket.
    pub core: u32,
    pub cpus: Vec<Cpu>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cpu {
    pub cpu: u32,
    #[serde(flatten)]
    pub owner: Owner,
}

/// The node to draw; its JSON is the list of cores.
#[derive(Debug)]
pub(crate) struct Map(pub Description);

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        cores(&self.0).serialize(serializer)
    }
}

impl Render for Map {
    fn text(&self, legend: bool) -> String {
        text(&self.0, view::width(), view::coloured(), legend)
    }
}

impl Map {
    /// Writes an SVG picture instead of text.
    pub(crate) fn draw(&self, path: &Path) -> Result<(), Failure> {
        fs::write(path, svg(&self.0)).map_err(|cause| Failure::Other(format!("write {}: {cause}", path.display())))
    }
}

/// The node's cores, ordered by socket, NUMA node and first CPU.
fn cores(description: &Description) -> Vec<Core> {
    let mut cores: BTreeMap<(u32, u32, u32), Vec<Cpu>> = BTreeMap::new();
    for (number, cpu) in &description.node.topology.cpus {
        let owner = owner(description, *number);
        let core = cores.entry((cpu.package, cpu.node, cpu.core)).or_default();
        core.push(Cpu { cpu: *number, owner });
    }
    let mut cores: Vec<Core> = cores
        .into_iter()
        .map(|((socket, node, core), cpus)| Core {
            socket,
            node,
            core,
            cpus,
        })
        .collect();
    cores.sort_by_key(|core| (core.socket, core.node, core.cpus.first().map(|cpu| cpu.cpu)));
    cores
}

/// One mark per CPU, so that the map needs no colour: `.` shared, `r` reserved, `k` held by kubelet, `?` unknown, a
/// letter per pod, `!` degraded.
fn marks(description: &Description) -> BTreeMap<String, char> {
    let node = &description.node;
    let pods: BTreeSet<&String> = node.instances.keys().chain(node.entries.keys()).collect();
    // If there are more pods than letters the last ones share one; the table below the map lists their CPUs.
    let letters = ('A'..='Z')
        .chain(('a'..='q').filter(|letter| *letter != 'k'))
        .chain(std::iter::repeat('#'));
    pods.into_iter().cloned().zip(letters).collect()
}

fn mark(owner: &Owner, marks: &BTreeMap<String, char>) -> char {
    match owner {
        Owner::Shared => '.',
        Owner::Reserved => 'r',
        Owner::Kubelet => 'k',
        Owner::Unknown => '?',
        Owner::Instance { whole: false, .. } => '!',
        Owner::Instance { pod, .. } | Owner::Pod { pod } => marks.get(pod).copied().unwrap_or('?'),
    }
}

/// The SGR code of an owner's colour.
fn colour(owner: &Owner) -> &'static str {
    match owner {
        Owner::Shared => "\x1b[32m",
        Owner::Reserved => "\x1b[36m",
        Owner::Unknown => "\x1b[90m",
        Owner::Instance { whole: true, .. } => "\x1b[1;34m",
        Owner::Instance { whole: false, .. } => "\x1b[1;31m",
        Owner::Pod { .. } | Owner::Kubelet => "\x1b[35m",
    }
}

/// The map as text, at most `width` columns wide unless one core alone is wider.
fn text(description: &Description, width: usize, coloured: bool, legend: bool) -> String {
    let marks = marks(description);
    let digits = description
        .node
        .topology
        .cpus
        .keys()
        .max()
        .map_or(1, |cpu| cpu.to_string().len());
    let mut text = String::new();
    let mut place = None;
    let mut used = 0;
    for core in cores(description) {
        if place != Some((core.socket, core.node)) {
            if place.is_some() {
                text.push('\n');
            }
            place = Some((core.socket, core.node));
            let _ = write!(text, "socket {} node {}\n ", core.socket, core.node);
            used = 1;
        }
        // "[12A 36A] "
        let needed = core.cpus.len() * (digits + 2) + 2;
        if used + needed > width && used > 1 {
            text.push_str("\n ");
            used = 1;
        }
        used += needed;
        text.push('[');
        for (n, cpu) in core.cpus.iter().enumerate() {
            let mark = mark(&cpu.owner, &marks);
            let gap = if n == 0 { "" } else { " " };
            let _ = if coloured {
                write!(text, "{gap}{}{:>digits$}{mark}\x1b[0m", colour(&cpu.owner), cpu.cpu)
            } else {
                write!(text, "{gap}{:>digits$}{mark}", cpu.cpu)
            };
        }
        text.push_str("] ");
    }
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let mut text = lines.join("\n") + "\n";
    if legend {
        let mut cpus = description.node.topology.cpus.keys();
        let held = cpus.any(|cpu| owner(description, *cpu) == Owner::Kubelet);
        let held = if held { "k: held by kubelet, " } else { "" };
        text += &format!("\n.: shared, r: reserved, {held}?: unknown, !: of an instance that is degraded\n");
    }
    text + &owners(description, &marks, legend)
}

fn owners(description: &Description, marks: &BTreeMap<String, char>, legend: bool) -> String {
    let node = &description.node;
    let rows = marks.iter().map(|(pod, mark)| match node.instances.get(pod) {
        Some(instance) => (*mark, pod, instance.exclusive.clone(), state_and_class(instance)),
        None => {
            let containers = node.entries.get(pod).into_iter().flat_map(BTreeMap::values);
            let all = containers.fold(CpuSet::new(), |all, cpus| all.union(cpus));
            (*mark, pod, all, "no instance".to_owned())
        }
    });
    let columns = [
        column("MARK", |(mark, ..): &(char, &String, CpuSet, String)| mark.to_string()),
        column("POD UID", |(_, pod, ..)| (*pod).clone()),
        column("CPUS", |(_, _, cpus, _)| cpus.to_string()),
        column("STATE", |(.., state)| state.clone()),
    ];
    view::list(&columns, &rows.collect::<Vec<_>>(), legend && !marks.is_empty())
}

/// The width of a CPU in the picture, in pixels.
const CELL: usize = 26;
const CORES_A_ROW: usize = 12;

fn svg(description: &Description) -> String {
    let marks = marks(description);
    let (mut body, mut y, mut right) = (String::new(), 10, 0);
    let cores = cores(description);
    let mut rest = cores.as_slice();
    while let Some(first) = rest.first() {
        let same = |core: &Core| (core.socket, core.node) == (first.socket, first.node);
        let count = rest.iter().take_while(|core| same(core)).count();
        let (here, after) = rest.split_at(count);
        rest = after;
        let _ = writeln!(
            body,
            "<text x=\"10\" y=\"{}\">socket {}, NUMA node {}</text>",
            y + 14,
            first.socket,
            first.node
        );
        y += 24;
        for row in here.chunks(CORES_A_ROW) {
            let mut x = 10;
            for core in row {
                let wide = core.cpus.len() * CELL;
                let _ = writeln!(
                    body,
                    "<rect class=\"core\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"/>",
                    wide + 4,
                    CELL + 4
                );
                for (n, cpu) in core.cpus.iter().enumerate() {
                    let (left, class) = (x + 2 + n * CELL, class(&cpu.owner));
                    let _ = writeln!(
                        body,
                        "<rect class=\"{class}\" x=\"{left}\" y=\"{}\" width=\"{CELL}\" height=\"{CELL}\"/>\
                         <text class=\"cpu\" x=\"{}\" y=\"{}\">{}{}</text>",
                        y + 2,
                        left + CELL / 2,
                        y + 19,
                        cpu.cpu,
                        match &cpu.owner {
                            Owner::Instance { .. } | Owner::Pod { .. } => mark(&cpu.owner, &marks).to_string(),
                            _ => String::new(),
                        }
                    );
                }
                x += wide + 12;
            }
            right = right.max(x);
            y += CELL + 12;
        }
        y += 6;
    }
    for (pod, mark) in &marks {
        let instance = description.node.instances.get(pod);
        let state = instance.map_or_else(|| "no instance".to_owned(), state_and_class);
        let _ = writeln!(
            body,
            "<text x=\"10\" y=\"{}\">{mark}: {} ({})</text>",
            y + 14,
            escaped(pod),
            escaped(&state)
        );
        y += 20;
    }
    let keys = [
        ("shared", "shared"),
        ("reserved", "reserved"),
        ("whole", "a VM's own"),
        ("broken", "degraded"),
        ("pod", "another pod's"),
    ];
    let mut x = 10;
    for (class, name) in keys {
        let _ = writeln!(
            body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            x + 20,
            y + 12
        );
        x += 34 + name.len() * 8;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"monospace\" font-size=\"13\">\n{STYLE}\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n",
        right.max(x) + 10,
        y + 26
    )
}

const STYLE: &str = "<style>.core{fill:none;stroke:#888}.cpu{text-anchor:middle;font-size:11px}.shared{fill:#cfe8cf}.reserved{fill:#c5e3ea}\
                     .whole{fill:#9db8f2}.broken{fill:#f29d9d}.pod{fill:#e2c8ee}.unknown{fill:#ddd}</style>";

fn class(owner: &Owner) -> &'static str {
    match owner {
        Owner::Shared => "shared",
        Owner::Reserved => "reserved",
        Owner::Unknown => "unknown",
        Owner::Instance { whole: true, .. } => "whole",
        Owner::Instance { whole: false, .. } => "broken",
        Owner::Pod { .. } | Owner::Kubelet => "pod",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{PODS, allocated, node};

    #[test]
    fn what_steliad_gave_is_its_instances_and_not_kubelets() {
        assert_eq!(
            text(&allocated(), 80, false, true),
            "socket 0 node 0\n [0r 1.] [2B 3.]\nsocket 1 node 1\n [4A 5A] [6k 7.]\n\n\
             .: shared, r: reserved, k: held by kubelet, ?: unknown, !: of an instance that is degraded\n\
             MARK  POD UID   CPUS  STATE\n\
             A     aaaaaaaa  4-5   isolated, LSE\n\
             B     bbbbbbbb  2     contained, LSR\n\
             C     cccccccc  -     floating, LS\n"
        );
        let json = serde_json::to_value(cores(&allocated())).unwrap();
        assert_eq!(json[1]["cpus"][0]["class"], "LSR");
        assert_eq!(json[3]["cpus"][0]["owner"], "kubelet");
        let of_kubelets = serde_json::to_value(cores(&node())).unwrap();
        assert!(of_kubelets[2]["cpus"][0].get("class").is_none());
        assert!(svg(&allocated()).contains("cccccccc (floating, LS)"));
    }

    #[test]
    fn every_cpu_is_drawn_once_with_the_mark_of_its_owner() {
        let text = text(&node(), 80, false, true);
        assert_eq!(
            text,
            "socket 0 node 0\n [0r 1r] [2! 3.]\nsocket 1 node 1\n [4A 5A] [6C 7.]\n\n\
             .: shared, r: reserved, ?: unknown, !: of an instance that is degraded\n\
             MARK  POD UID   CPUS  STATE\n\
             A     aaaaaaaa  4-5   isolated\n\
             B     bbbbbbbb  2     floating\n\
             C     cccccccc  6     no instance\n"
        );
    }

    #[test]
    fn a_narrow_terminal_gets_more_lines_and_the_same_map() {
        let wide: String = text(&node(), 80, false, false);
        let narrow = text(&node(), 10, false, false);
        assert!(
            narrow
                .lines()
                .take_while(|line| !line.starts_with('A'))
                .all(|line| line.len() <= 15),
            "{narrow}"
        );
        let cells = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(cells(&wide), cells(&narrow));
    }

    #[test]
    fn colours_only_where_asked_for() {
        assert!(!text(&node(), 80, false, true).contains('\x1b'));
        assert!(text(&node(), 80, true, true).contains("\x1b[1;31m2!\x1b[0m"));
    }

    #[test]
    fn the_picture_holds_every_cpu_and_every_pod() {
        let picture = svg(&node());
        for (class, count) in [("shared", 2), ("reserved", 2), ("whole", 2), ("broken", 1), ("pod", 1)] {
            let cells = picture.matches(&format!("<rect class=\"{class}\"")).count();
            // One more cell is in the key.
            assert_eq!(cells, count + 1, "{class}");
        }
        assert!(PODS.iter().all(|pod| picture.contains(pod)));
        assert_eq!(picture.matches("<svg").count(), picture.matches("</svg>").count());
    }

    #[test]
    fn more_pods_than_letters_share_a_mark_and_all_are_listed() {
        let mut node = node();
        for n in 0..60 {
            node.node.entries.insert(format!("pod-{n:02}"), BTreeMap::new());
        }
        let text = text(&node, 80, false, true);
        assert!(text.contains("#     pod-59"), "{text}");
    }
}
