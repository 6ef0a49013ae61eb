//! The map as boxes in boxes, with every text measured: sockets, NUMA nodes, L3 caches, cores and CPUs, the devices beside their
//! NUMA node, a legend and a list of pods.

use stelia_kernel::locality::{Device, size};

use super::boxes::{CELL_HEIGHT, GAP, LARGE_TEXT_SIZE, SMALL_TEXT_SIZE, Shape, TEXT_SIZE, balance, grid, text_width};
use super::marks::{COLOURS, columns, cut, device_mark, keys, mark, pool, sign, tail};
use super::{Core, CoreGroup, Cpu, CpuOwner, Map, Pod};
use crate::shared::output::printable;

/// The smallest width of a picture: the names of pods need room.
const MIN_PICTURE_WIDTH: usize = 760;
/// The most columns of a device's name.
const DEVICE_COLUMNS: usize = 26;

/// The picture: a heading, the machine, its legend and the list of pods.
pub(super) fn picture(map: &Map) -> Shape {
    let machine = machine(map);
    let width = machine.width.max(MIN_PICTURE_WIDTH);
    let mut parts = vec![heading(map, width), machine, legend(map, width)];
    if !map.pods.is_empty() {
        parts.push(list(map, width));
    }
    let mut y = 0;
    for part in &mut parts {
        part.shift(0, y);
        y = part.bottom() + 2 * GAP;
    }
    let mut all = Shape::new("", String::new());
    parts.iter_mut().for_each(|part| part.shift(10, 10));
    (all.width, all.height) = (width + 20, y.saturating_sub(2 * GAP) + 20);
    all.inside = parts;
    all
}

fn heading(map: &Map, width: usize) -> Shape {
    let mut shape = Shape::new("", String::new());
    let most = width * 8 / (LARGE_TEXT_SIZE * 5);
    let host = printable(&map.host);
    let mut y = 0;
    if !host.is_empty() {
        shape.label(0, LARGE_TEXT_SIZE, LARGE_TEXT_SIZE, cut(&host, most));
        y = LARGE_TEXT_SIZE + 6;
    }
    shape.label(0, y + TEXT_SIZE, TEXT_SIZE, format!("{}, {}", map.time(), map.extent()));
    (shape.width, shape.height) = (width, y + TEXT_SIZE + 4);
    shape
}

fn machine(map: &Map) -> Shape {
    let widest = map.cpus().map(|cpu| columns(&cell(map, cpu))).max().unwrap_or(1);
    let cell_width = text_width(&"8".repeat(widest), SMALL_TEXT_SIZE) + 6;
    let mut places: Vec<(u32, Shape)> = Vec::new();
    for place in map.places() {
        places.push((place.socket, node(map, &place, cell_width)));
    }
    let mut sockets: Vec<Shape> = Vec::new();
    while let Some((socket, _)) = places.first() {
        let socket = *socket;
        let (here, rest): (Vec<_>, Vec<_>) = places.into_iter().partition(|(of, _)| *of == socket);
        places = rest;
        let mut nodes: Vec<Shape> = here.into_iter().map(|(_, node)| node).collect();
        balance(&mut nodes);
        sockets.push(Shape::around(
            "socket",
            format!("Socket {socket}"),
            String::new(),
            nodes,
        ));
    }
    let inner = balance(&mut sockets);
    sockets.extend(devices(map, None, inner));
    let memory: Option<u64> = map.nodes.values().copied().sum();
    let name = match memory.filter(|memory| *memory > 0) {
        Some(bytes) => format!("Machine {}", size(bytes)),
        None => "Machine".to_owned(),
    };
    Shape::around("machine", name, String::new(), sockets)
}

fn node(map: &Map, place: &CoreGroup<'_>, cell_width: usize) -> Shape {
    let mut inside = Vec::new();
    for cores in place.cores.chunk_by(|a, b| a.cache == b.cache) {
        let mut boxes: Vec<Shape> = cores.iter().map(|one| core(map, one, cell_width)).collect();
        let cache = cores.first().and_then(|core| map.caches.get(core.cache?));
        match cache {
            Some(cache) => {
                balance(&mut boxes);
                let title = format!("{}, shared by CPUs {}", cache.title(), cache.cpus);
                inside.push(Shape::around("cache", cache.title(), title, boxes));
            }
            None => inside.append(&mut boxes),
        }
    }
    let inner = balance(&mut inside);
    if place.is_first {
        inside.extend(devices(map, Some(place.node), inner));
    }
    let memory = map.nodes.get(&place.node).copied().flatten();
    let memory = memory.map(|bytes| format!(" {}", size(bytes))).unwrap_or_default();
    Shape::around(
        "node",
        format!("NUMA node {}{memory}", place.node),
        String::new(),
        inside,
    )
}

fn core(map: &Map, core: &Core, cell_width: usize) -> Shape {
    let mut cpus: Vec<Shape> = core.cpus.iter().map(|cpu| self::cpu(map, cpu, cell_width)).collect();
    // Siblings are beside each other, up to four.
    grid(&mut cpus, 4);
    let title = format!("Core {} of socket {}", core.core, core.socket);
    Shape::around("core", format!("Core {}", core.core), title, cpus)
}

/// What is written into a CPU's box. Shared CPUs are known by their colour.
fn cell(map: &Map, cpu: &Cpu) -> String {
    match cpu.whose {
        CpuOwner::Shared => cpu.number.to_string(),
        _ => format!("{}{}", cpu.number, tail(map, cpu)),
    }
}

fn cpu(map: &Map, cpu: &Cpu, wide: usize) -> Shape {
    let (class, owner) = match cpu.whose {
        CpuOwner::Pod(n) => match map.pods.get(n) {
            Some(pod) => (pod_class(n, pod), pod_title(pod)),
            None => (String::new(), String::new()),
        },
        whose => {
            let [_, meaning, class, _] = pool(whose);
            (class.to_owned(), meaning.to_owned())
        }
    };
    let interrupted = if map.interrupted.contains(cpu.number) {
        "; device interrupts reach it"
    } else {
        ""
    };
    let title = format!("CPU {}: {owner}{interrupted}", cpu.number);
    Shape::cell(format!("cpu {class}"), title, (wide, CELL_HEIGHT), cell(map, cpu))
}

/// The classes of what is a pod's: its colour, itself, its state.
fn pod_class(n: usize, pod: &Pod) -> String {
    format!("c{} {}", n % COLOURS, sign(pod).class)
}

/// The pod and its state in one line.
fn pod_title(pod: &Pod) -> String {
    let texts = [vec![format!("{}, {}", pod.pod, pod.state())], pod.degraded()].concat();
    printable(&texts.join("; "))
}

/// The devices of a NUMA node in columns to the right of what is this wide and this high.
fn devices(map: &Map, node: Option<u32>, (width, height): (usize, usize)) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = map
        .devices(node)
        .map(|(n, device)| self::device(map, n, device))
        .collect();
    let wide = shapes.iter().map(|shape| shape.width).max().unwrap_or(0);
    let a_column = ((height + GAP) / (CELL_HEIGHT + GAP)).max(1);
    for (n, shape) in shapes.iter_mut().enumerate() {
        shape.width = wide;
        let x = width + 2 * GAP + n / a_column * (wide + GAP);
        shape.shift(x, n % a_column * (CELL_HEIGHT + GAP));
    }
    shapes
}

fn device(map: &Map, n: usize, device: &Device) -> Shape {
    let count = if device.count == 1 {
        String::new()
    } else {
        format!(" ×{}", device.count)
    };
    let name = printable(&device.name);
    let text = format!("{}{count} {}", cut(&name, DEVICE_COLUMNS), device_mark(map, n, device));
    let (class, pod) = match map.pods.get(n) {
        Some(pod) => (format!("c{}", n % COLOURS), pod.pod.to_string()),
        None => (String::new(), String::new()),
    };
    let on = device
        .node
        .map(|node| format!(", NUMA node {node}"))
        .unwrap_or_default();
    let away = if map.pods.get(n).is_some_and(|pod| pod.is_remote(device)) {
        ", remote from its CPUs"
    } else {
        ""
    };
    let title = printable(&format!("{name}{count}{on}{away}: {pod}"));
    let mut shape = Shape::new(format!("device {class}"), title);
    (shape.width, shape.height) = (text_width(&text, SMALL_TEXT_SIZE) + 8, CELL_HEIGHT);
    shape.label(4, 13, SMALL_TEXT_SIZE, text);
    shape
}

/// What each look means, in as many lines as it takes.
fn legend(map: &Map, width: usize) -> Shape {
    let mut shape = Shape::new("", String::new());
    let (mut x, mut y) = (0, 0);
    for key in keys(map) {
        let of_pods = key.mark.starts_with('A');
        let sample = if key.class == "shared" { String::new() } else { key.mark };
        let colour = if of_pods { "c0 " } else { "" };
        let class = format!("cpu {colour}{}", key.class);
        let mut swatch = Shape::cell(class, String::new(), (26, CELL_HEIGHT), sample);
        let wide = 32 + text_width(key.meaning, TEXT_SIZE);
        if x > 0 && x + wide > width {
            (x, y) = (0, y + CELL_HEIGHT + GAP);
        }
        swatch.shift(x, y);
        shape.inside.push(swatch);
        shape.label(x + 32, y + 13, TEXT_SIZE, key.meaning.to_owned());
        x += wide + 3 * GAP;
    }
    (shape.width, shape.height) = (width, y + CELL_HEIGHT);
    shape
}

/// A pod's mark in its colour.
fn sample(n: usize, pod: &Pod, width: usize) -> Shape {
    let class = format!("cpu {}", pod_class(n, pod));
    Shape::cell(class, String::new(), (width, CELL_HEIGHT), mark(n))
}

/// The width of the widest mark's box.
fn sample_width(map: &Map) -> usize {
    let marks = (0..map.pods.len()).map(|n| text_width(&mark(n), SMALL_TEXT_SIZE));
    marks.max().unwrap_or(0) + 8
}

/// The most columns of a pod's name, its CPUs and its state.
const CELLS: [usize; 3] = [44, 20, 26];

/// The pods, column by column.
fn list(map: &Map, width: usize) -> Shape {
    let rows = map.pods.iter().map(|pod| {
        [
            printable(&pod.pod.to_string()),
            pod.cpus.to_string(),
            printable(&pod.state()),
        ]
    });
    let rows: Vec<[String; 3]> = rows.collect();
    let mut cells = [0; 3];
    for row in &rows {
        for ((cell, text), most) in cells.iter_mut().zip(row).zip(CELLS) {
            *cell = columns(text).min(most).max(*cell);
        }
    }
    let swatch = sample_width(map);
    let wide = cells.map(|cell| text_width(&"8".repeat(cell), TEXT_SIZE) + 2 * GAP);
    let row_width = swatch + 2 * GAP + wide.iter().sum::<usize>();
    let across = (width / (row_width + 2 * GAP)).max(1);
    let a_column = rows.len().div_ceil(across).max(1);
    let mut shape = Shape::new("", String::new());
    for (n, (row, pod)) in rows.iter().zip(&map.pods).enumerate() {
        let mut line = Shape::new("", pod_title(pod));
        (line.width, line.height) = (row_width, CELL_HEIGHT);
        let sample = sample(n, pod, swatch);
        let mut x = swatch + 2 * GAP;
        for ((text, most), wide) in row.iter().zip(cells).zip(wide) {
            line.label(x, 13, TEXT_SIZE, cut(text, most));
            x += wide;
        }
        line.inside.push(sample);
        line.shift(n / a_column * (row_width + 2 * GAP), n % a_column * (CELL_HEIGHT + 4));
        shape.inside.push(line);
    }
    let bottom = shape.inside.iter().map(Shape::bottom).max();
    (shape.width, shape.height) = (width, bottom.unwrap_or(0));
    shape
}
