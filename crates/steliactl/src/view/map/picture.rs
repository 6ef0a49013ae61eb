//! The map as SVG: boxes in boxes, with every text measured. Sockets, NUMA nodes, L3 caches, cores and CPUs, the devices beside their NUMA
//! node, a legend and a list of pods. Lengths are pixels; a place is within the box around it.

use askama::Template;
use stelia_kernel::locality::{Device, size};

use super::marks::{COLOURS, mark};
use super::{Core, CoreGroup, Cpu, CpuOwner, Map, Pod};
use crate::shared::output::{columns, cut, printable};

/// A picture in a file. Whatever the browser's colours are, it chooses its own: `templates/map.css`.
#[derive(Template)]
#[template(path = "map.svg")]
struct File {
    picture: Shape,
}

/// A box, with what is in it.
#[derive(Debug, Default, Template)]
#[template(path = "shape.svg")]
struct Shape {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    /// Classes of the style sheet; without any the box itself is not drawn.
    class: String,
    /// The whole text that pointing at it shows; empty: none.
    title: String,
    labels: Vec<Label>,
    inside: Vec<Shape>,
}

#[derive(Debug)]
struct Label {
    /// Where it begins, or its middle if it is centred.
    x: usize,
    /// Its base line.
    y: usize,
    size: usize,
    is_centred: bool,
    text: String,
}

/// Sizes of letters.
const SMALL_TEXT_SIZE: usize = 11;
const TEXT_SIZE: usize = 12;
const LARGE_TEXT_SIZE: usize = 17;

const PAD: usize = 6;
const GAP: usize = 6;
const CELL_HEIGHT: usize = 18;
/// The height of a line with a title or a key in it.
const LINE: usize = 20;
/// The smallest width of a picture: the names of pods need room.
const MIN_PICTURE_WIDTH: usize = 760;
/// The most columns of a device's name, and of a pod's.
const DEVICE_COLUMNS: usize = 26;
const NAME_COLUMNS: usize = 44;

/// How wide a text is at most: monospaced fonts have letters of 0.55 to 0.61 of their size.
pub(super) fn text_width(text: &str, size: usize) -> usize {
    (columns(text) * size * 5).div_ceil(8)
}

impl Shape {
    fn new(class: impl Into<String>, title: String, width: usize, height: usize) -> Self {
        Self {
            class: class.into(),
            title,
            width,
            height,
            ..Self::default()
        }
    }

    fn label(mut self, x: usize, y: usize, size: usize, text: String) -> Self {
        let is_centred = false;
        self.labels.push(Label {
            x,
            y,
            size,
            is_centred,
            text,
        });
        self
    }

    /// A small box round one text.
    fn cell(class: String, title: String, width: usize, text: String) -> Self {
        let cell = Self::new(class, title, width, CELL_HEIGHT);
        let mut cell = cell.label(width / 2, CELL_HEIGHT - 5, SMALL_TEXT_SIZE, text);
        cell.labels.iter_mut().for_each(|label| label.is_centred = true);
        cell
    }

    /// A box round others, with its name above them.
    fn around(class: &str, name: String, title: String, mut inside: Vec<Shape>) -> Self {
        for one in &mut inside {
            (one.x, one.y) = (one.x + PAD, one.y + LINE);
        }
        let (right, bottom) = extent(&inside);
        let width = right.max(PAD + text_width(&name, SMALL_TEXT_SIZE)) + PAD;
        let mut shape = Self::new(class, title, width, bottom.max(LINE) + PAD);
        shape.inside = inside;
        shape.label(PAD, 14, SMALL_TEXT_SIZE, name)
    }

    /// A sample with a text beside it.
    fn line(sample: Shape, title: String, text: String) -> Self {
        let x = sample.width + GAP;
        let mut line = Self::new("", title, x + text_width(&text, TEXT_SIZE), CELL_HEIGHT);
        line.inside.push(sample);
        line.label(x, 13, TEXT_SIZE, text)
    }

    /// Lines in as many columns as fit, column by column.
    fn lines(mut lines: Vec<Shape>, width: usize) -> Self {
        let widest = lines.iter().map(|line| line.width).max().unwrap_or(0) + 2 * GAP;
        let down = lines.len().div_ceil((width / widest).max(1)).max(1);
        for (n, line) in lines.iter_mut().enumerate() {
            (line.x, line.y) = (n / down * widest, n % down * (CELL_HEIGHT + GAP));
        }
        Self::unseen(lines)
    }

    /// One that is not drawn itself.
    fn unseen(inside: Vec<Shape>) -> Self {
        let (width, height) = extent(&inside);
        Self {
            inside,
            ..Self::new("", String::new(), width, height)
        }
    }
}

fn extent(shapes: &[Shape]) -> (usize, usize) {
    let right = shapes.iter().map(|shape| shape.x + shape.width);
    let bottom = shapes.iter().map(|shape| shape.y + shape.height);
    (right.max().unwrap_or(0), bottom.max().unwrap_or(0))
}

/// Arranges shapes in this many columns, row by row.
fn grid(shapes: &mut [Shape], across: usize) {
    let mut y = 0;
    for row in shapes.chunks_mut(across.max(1)) {
        let mut x = 0;
        for shape in &mut *row {
            (shape.x, shape.y) = (x, y);
            x += shape.width + GAP;
        }
        y += row.iter().map(|shape| shape.height).max().unwrap_or(0) + GAP;
    }
}

/// Puts shapes of like sizes into as many columns as bring the whole nearest to a screen's 16:10, with few empty places.
fn balance(shapes: &mut [Shape]) {
    let wide = shapes.iter().map(|shape| shape.width + GAP).max().unwrap_or(1);
    let high = shapes.iter().map(|shape| shape.height + GAP).max().unwrap_or(1);
    let off = |across: &usize| {
        let down = shapes.len().div_ceil(*across);
        let (width, height) = (wide * across * 10, high * down * 16);
        // How many times, in thousandths, one is the other; as many times more as there are more places than shapes.
        width.max(height) * 1000 / width.min(height).max(1) * across * down
    };
    let across = (1..=shapes.len()).min_by_key(off).unwrap_or(1);
    grid(shapes, across);
}

/// The picture: a heading, the machine, its legend and the list of pods.
///
/// # Errors
/// It cannot be written.
pub(super) fn svg(map: &Map) -> Result<String, askama::Error> {
    let machine = machine(map);
    let width = machine.width.max(MIN_PICTURE_WIDTH);
    let mut parts = vec![heading(map, width), machine, legend(map, width), list(map, width)];
    let mut y = 10;
    for part in &mut parts {
        (part.x, part.y) = (10, y);
        y += part.height + 2 * GAP;
    }
    let mut picture = Shape::unseen(parts);
    (picture.width, picture.height) = (width + 20, y.saturating_sub(2 * GAP) + 10);
    File { picture }.render()
}

fn heading(map: &Map, width: usize) -> Shape {
    let host = cut(&printable(&map.host), width * 8 / (LARGE_TEXT_SIZE * 5));
    let y = if host.is_empty() { 0 } else { LARGE_TEXT_SIZE + 6 };
    let shape = Shape::new("", String::new(), width, y + TEXT_SIZE + 4);
    let shape = shape.label(0, y + TEXT_SIZE, TEXT_SIZE, map.extent());
    if host.is_empty() {
        return shape;
    }
    shape.label(0, LARGE_TEXT_SIZE, LARGE_TEXT_SIZE, host)
}

fn machine(map: &Map) -> Shape {
    let widest = map.cpus().map(|cpu| columns(&cell(map, cpu))).max().unwrap_or(1);
    let cell_width = text_width(&"8".repeat(widest), SMALL_TEXT_SIZE) + 6;
    let places: Vec<CoreGroup<'_>> = map.places().collect();
    let sockets = places.chunk_by(|a, b| a.socket == b.socket).map(|places| {
        let mut nodes: Vec<Shape> = places.iter().map(|place| node(map, place, cell_width)).collect();
        balance(&mut nodes);
        let socket = places.first().map_or(0, |place| place.socket);
        Shape::around("socket", format!("Socket {socket}"), String::new(), nodes)
    });
    let mut inside: Vec<Shape> = sockets.collect();
    balance(&mut inside);
    inside.extend(devices(map, None, extent(&inside)));
    let memory: Option<u64> = map.nodes.values().copied().sum();
    let name = match memory.filter(|memory| *memory > 0) {
        Some(bytes) => format!("Machine {}", size(bytes)),
        None => "Machine".to_owned(),
    };
    Shape::around("machine", name, String::new(), inside)
}

fn node(map: &Map, place: &CoreGroup<'_>, cell_width: usize) -> Shape {
    let mut inside = Vec::new();
    for cores in place.by_cache() {
        let mut boxes: Vec<Shape> = cores.iter().map(|one| core(map, one, cell_width)).collect();
        match map.cache(cores) {
            Some(cache) => {
                balance(&mut boxes);
                let title = format!("{}, shared by CPUs {}", cache.title(), cache.cpus);
                inside.push(Shape::around("cache", cache.title(), title, boxes));
            }
            None => inside.append(&mut boxes),
        }
    }
    balance(&mut inside);
    if place.is_first {
        inside.extend(devices(map, Some(place.node), extent(&inside)));
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
    let mut cpus: Vec<Shape> = core.cpus.iter().map(|one| cpu(map, one, cell_width)).collect();
    // Siblings are beside each other, up to four.
    grid(&mut cpus, 4);
    let title = format!("Core {} of socket {}", core.core, core.socket);
    Shape::around("core", format!("Core {}", core.core), title, cpus)
}

/// What is written into a CPU's box. Shared CPUs are known by their colour.
fn cell(map: &Map, cpu: &Cpu) -> String {
    match cpu.whose {
        CpuOwner::Pool(pool) if pool.class == "shared" => cpu.number.to_string(),
        _ => format!("{}{}", cpu.number, map.cpu_mark(cpu)),
    }
}

fn cpu(map: &Map, cpu: &Cpu, width: usize) -> Shape {
    let (class, owner) = match cpu.whose {
        CpuOwner::Pool(pool) => (pool.class.to_owned(), pool.meaning.to_owned()),
        CpuOwner::Pod(n) => map
            .pods
            .get(n)
            .map(|pod| (class(n, pod), title(pod)))
            .unwrap_or_default(),
    };
    let interrupted = if map.interrupted.contains(cpu.number) {
        "; device interrupts reach it"
    } else {
        ""
    };
    let title = format!("CPU {}: {owner}{interrupted}", cpu.number);
    Shape::cell(format!("cpu {class}"), title, width, cell(map, cpu))
}

/// The classes of what is a pod's: its colour, its state.
fn class(n: usize, pod: &Pod) -> String {
    format!("c{} {}", n % COLOURS, pod.sign().class)
}

/// The pod and its state in one line.
fn title(pod: &Pod) -> String {
    [vec![format!("{}, {}", pod.pod, pod.state())], pod.degraded()]
        .concat()
        .join("; ")
}

/// The devices of a NUMA node in columns to the right of what is this wide and this high.
fn devices(map: &Map, node: Option<u32>, (width, height): (usize, usize)) -> Vec<Shape> {
    let shapes = map.devices(node).map(|(n, one)| device(map, n, one));
    let mut shapes: Vec<Shape> = shapes.collect();
    let wide = shapes.iter().map(|shape| shape.width).max().unwrap_or(0);
    let down = ((height + GAP) / (CELL_HEIGHT + GAP)).max(1);
    for (n, shape) in shapes.iter_mut().enumerate() {
        shape.width = wide;
        shape.x = width + 2 * GAP + n / down * (wide + GAP);
        shape.y = n % down * (CELL_HEIGHT + GAP);
    }
    shapes
}

fn device(map: &Map, n: usize, device: &Device) -> Shape {
    let name = printable(&device.name);
    let text = format!("{} {}", cut(&name, DEVICE_COLUMNS), map.device_mark(n, device));
    let pod = map.pods.get(n);
    let on = device
        .node
        .map(|node| format!(", NUMA node {node}"))
        .unwrap_or_default();
    let is_remote = pod.is_some_and(|pod| pod.is_remote(device));
    let away = if is_remote { ", remote from its CPUs" } else { "" };
    let owner = pod.map(|pod| pod.pod.to_string()).unwrap_or_default();
    let title = format!("{} {name}{on}{away}: {owner}", device.count);
    let shape = Shape::new(
        format!("device c{}", n % COLOURS),
        title,
        text_width(&text, SMALL_TEXT_SIZE) + 8,
        CELL_HEIGHT,
    );
    shape.label(4, 13, SMALL_TEXT_SIZE, text)
}

/// What each look means.
fn legend(map: &Map, width: usize) -> Shape {
    let keys = map.keys().into_iter().map(|(mark, meaning, class)| {
        let colour = if mark.starts_with('A') { "c0 " } else { "" };
        let sample = if class == "shared" { String::new() } else { mark };
        let sample = Shape::cell(format!("cpu {colour}{class}"), String::new(), 26, sample);
        Shape::line(sample, String::new(), meaning.to_owned())
    });
    Shape::lines(keys.collect(), width)
}

/// The pods: the mark in its colour, the name, the CPUs and the state.
fn list(map: &Map, width: usize) -> Shape {
    let rows = map.pods.iter().map(|pod| {
        let name = cut(&printable(&pod.pod.to_string()), NAME_COLUMNS);
        [name, cut(&pod.cpus.to_string(), DEVICE_COLUMNS), pod.state()]
    });
    let rows: Vec<[String; 3]> = rows.collect();
    let widths = [0, 1, 2].map(|at| rows.iter().map(|row| columns(&row[at])).max().unwrap_or(0));
    let marks = (0..rows.len()).map(|n| text_width(&mark(n), SMALL_TEXT_SIZE) + 8).max();
    let lines = (0..).zip(rows.iter().zip(&map.pods)).map(|(n, (row, pod))| {
        let text = row.iter().zip(widths).fold(String::new(), |all, (text, width)| {
            all + text + &" ".repeat(width.saturating_sub(columns(text)) + 2)
        });
        let class = format!("cpu {}", class(n, pod));
        let sample = Shape::cell(class, String::new(), marks.unwrap_or(0), mark(n));
        Shape::line(sample, title(pod), text.trim_end().to_owned())
    });
    Shape::lines(lines.collect(), width)
}
