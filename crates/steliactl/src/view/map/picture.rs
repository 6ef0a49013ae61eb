//! The map as SVG: boxes in boxes, with every text measured. Sockets, NUMA nodes, L3 caches, cores and CPUs, the devices beside their NUMA
//! node, a legend and a list of pods. Lengths are pixels; a place is within the box around it.

use std::collections::BTreeSet;

use askama::Template;
use stelia_kernel::locality::size;

use super::{Core, Cpu, Map, Pod, PodDevice, signs};
use crate::shared::output::{Column, column, columns, cut, printable, table};

/// A picture in a file. Whatever the browser's colours are, it chooses its own: `templates/map.css`.
#[derive(Template)]
#[template(path = "map.svg")]
struct File {
    width: usize,
    height: usize,
    host: String,
    extent: String,
    parts: Vec<Shape>,
}

/// A box with a text, and with what is in it.
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
    text: String,
    /// Where the text begins; its middle in the box of a CPU.
    text_x: usize,
    inside: Vec<Shape>,
}

/// The letters' size, as in the template.
const TEXT_SIZE: usize = 12;
const HOST_SIZE: usize = 17;
/// Around everything, and the height of the heading.
const MARGIN: usize = 10;
const HEADING: usize = 58;
const PAD: usize = 6;
const GAP: usize = 6;
const CELL_HEIGHT: usize = 18;
const SAMPLE_WIDTH: usize = 36;
/// The height of a line with a name in it.
const LINE: usize = 20;
/// The smallest width of a picture: the names of pods need room.
const MIN_PICTURE_WIDTH: usize = 760;
/// The most columns of a device's name, and of a pod's.
const DEVICE_COLUMNS: usize = 26;
const NAME_COLUMNS: usize = 44;

/// How wide a text is at most: monospaced fonts have letters of 0.55 to 0.61 of their size.
fn text_width(text: &str) -> usize {
    (columns(text) * TEXT_SIZE * 5).div_ceil(8)
}

impl Shape {
    fn new(class: &str, width: usize, height: usize, text: String, text_x: usize) -> Self {
        Self {
            class: class.to_owned(),
            width,
            height,
            text,
            text_x,
            ..Self::default()
        }
    }

    /// A small box round one text.
    fn cell(class: &str, width: usize, text: String) -> Self {
        Self::new(class, width, CELL_HEIGHT, text, width / 2)
    }

    /// A box round others, with its name above them.
    fn around(class: &str, name: String, mut inside: Vec<Shape>) -> Self {
        for one in &mut inside {
            (one.x, one.y) = (one.x + PAD, one.y + LINE);
        }
        let (right, bottom) = extent(&inside);
        let width = right.max(PAD + text_width(&name)) + PAD;
        let shape = Self::new(class, width, bottom.max(LINE) + PAD, name, PAD);
        Self { inside, ..shape }
    }

    /// A sample of a CPU's sign with a text beside it.
    fn line(class: &str, mark: &str, text: String) -> Self {
        let inside = vec![Self::cell(&format!("cpu {class}"), SAMPLE_WIDTH, mark.to_owned())];
        let text_x = SAMPLE_WIDTH + GAP;
        let shape = Self::new("", text_x + text_width(&text) + 2 * GAP, CELL_HEIGHT, text, text_x);
        Self { inside, ..shape }
    }

    /// Lines in as many columns as fit.
    fn lines(mut inside: Vec<Shape>, width: usize) -> Self {
        let widest = inside.iter().map(|line| line.width).max().unwrap_or(1);
        inside.iter_mut().for_each(|line| line.width = widest);
        grid(&mut inside, width / (widest + GAP));
        let (width, height) = extent(&inside);
        let shape = Self::new("", width, height, String::new(), 0);
        Self { inside, ..shape }
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

/// Puts shapes of like sizes into as many columns as bring the whole nearest to a screen's 16:10.
fn balance(shapes: &mut [Shape]) {
    let wide = shapes.iter().map(|shape| shape.width + GAP).max().unwrap_or(1);
    let high = shapes.iter().map(|shape| shape.height + GAP).max().unwrap_or(1);
    // As many columns make it too wide by the factor by which one less makes it too high.
    let squared = shapes.len() * high * 16 / (wide * 10);
    let across = (4 * squared + 1).isqrt().div_ceil(2);
    let down = shapes.len().div_ceil(across).max(1);
    grid(shapes, shapes.len().div_ceil(down));
}

/// The picture: a heading, the machine, what each sign means, and the pods.
///
/// # Errors
/// It cannot be written.
pub(super) fn svg(map: &Map) -> Result<String, askama::Error> {
    let machine = machine(map);
    let width = machine.width.max(MIN_PICTURE_WIDTH);
    let legend = map.signs(&map.pods).into_iter();
    let legend = legend.map(|sign| Shape::line(sign.class, sign.text, sign.meaning.to_owned()));
    let mut parts = vec![
        machine,
        Shape::lines(legend.collect(), width),
        Shape::lines(list(map), width),
    ];
    let mut y = HEADING;
    for part in &mut parts {
        (part.x, part.y) = (MARGIN, y);
        y += part.height + 2 * GAP;
    }
    let file = File {
        width: width + 2 * MARGIN,
        height: y,
        host: cut(&printable(&map.host), width * 8 / (HOST_SIZE * 5)),
        extent: map.extent(),
        parts,
    };
    file.render()
}

fn machine(map: &Map) -> Shape {
    let cpus = map.cores.iter().flat_map(|core| &core.cpus);
    let widest = cpus.map(|cpu| text_width(&cpu_text(cpu))).max().unwrap_or(0) + PAD;
    let mut seen = BTreeSet::new();
    let sockets = map.cores.chunk_by(|a, b| a.socket == b.socket).map(|cores| {
        let nodes = cores.chunk_by(|a, b| a.node == b.node);
        let mut nodes: Vec<Shape> = nodes.map(|cores| node(map, cores, widest, &mut seen)).collect();
        balance(&mut nodes);
        let socket = cores.first().map_or(0, |core| core.socket);
        Shape::around("socket", format!("Socket {socket}"), nodes)
    });
    let mut inside: Vec<Shape> = sockets.collect();
    balance(&mut inside);
    // Devices on NUMA nodes without CPUs.
    add_devices(&mut inside, map, |node| !map.memory_bytes.contains_key(&node));
    let memory: Option<u64> = map.memory_bytes.values().copied().sum();
    let memory = memory.filter(|memory| *memory > 0);
    Shape::around("machine", with_memory("Machine".to_owned(), memory), inside)
}

/// The cores of a NUMA node in one socket. Its devices are beside the first of these.
fn node(map: &Map, cores: &[Core], cell_width: usize, seen: &mut BTreeSet<u32>) -> Shape {
    let node = cores.first().map_or(0, |core| core.node);
    let mut inside = Vec::new();
    for cores in cores.chunk_by(|a, b| a.l3 == b.l3) {
        let mut boxes: Vec<Shape> = cores.iter().map(|one| core(one, cell_width)).collect();
        balance(&mut boxes);
        match cores.first().and_then(|core| core.l3.as_ref()) {
            Some(cache) => inside.push(Shape::around("cache", cache.title(), boxes)),
            None => inside.append(&mut boxes),
        }
    }
    balance(&mut inside);
    if seen.insert(node) {
        add_devices(&mut inside, map, |other| other == node);
    }
    let memory = map.memory_bytes.get(&node).copied().flatten();
    Shape::around("node", with_memory(format!("NUMA {node}"), memory), inside)
}

fn with_memory(name: String, bytes: Option<u64>) -> String {
    bytes.map(|bytes| format!("{name} {}", size(bytes))).unwrap_or(name)
}

fn core(core: &Core, cell_width: usize) -> Shape {
    let cpu = |one: &Cpu| Shape {
        title: format!("CPU {}: {}", one.cpu, one.mark.owner),
        ..Shape::cell(&format!("cpu {}", one.mark.class), cell_width, cpu_text(one))
    };
    let mut cpus: Vec<Shape> = core.cpus.iter().map(cpu).collect();
    // Siblings are beside each other, up to four.
    grid(&mut cpus, 4);
    Shape::around("core", format!("Core {}", core.core), cpus)
}

/// What is written into a CPU's box. Shared CPUs are known by their colour.
fn cpu_text(cpu: &Cpu) -> String {
    if cpu.mark.sign == signs::SHARED {
        cpu.cpu.to_string()
    } else {
        format!("{}{}", cpu.cpu, cpu.mark.text)
    }
}

/// Adds the devices on these NUMA nodes, in columns to the right of what is there and about as high.
fn add_devices(inside: &mut Vec<Shape>, map: &Map, is_on: impl Fn(u32) -> bool) {
    let mut shapes = Vec::new();
    for pod in &map.pods {
        let class = signs::DEVICE.class_of(pod.number);
        for device in pod.devices.iter().filter(|device| is_on(device.node)) {
            let PodDevice { name, node, count, .. } = device;
            let text = format!(
                "{} {}{}",
                cut(&printable(name), DEVICE_COLUMNS),
                pod.letters,
                device.suffix()
            );
            let away = if device.remote { ", remote from its CPUs" } else { "" };
            let title = format!("{count} {name}, NUMA {node}{away}: {}", pod.pod);
            let cell = Shape::cell(&class, text_width(&text) + PAD, text);
            shapes.push(Shape { title, ..cell });
        }
    }
    let widest = shapes.iter().map(|shape| shape.width).max().unwrap_or(0);
    let (right, bottom) = extent(inside);
    let down = ((bottom + GAP) / (CELL_HEIGHT + GAP)).max(1);
    let across = shapes.len().div_ceil(down);
    for shape in &mut shapes {
        (shape.width, shape.text_x) = (widest, widest / 2);
    }
    grid(&mut shapes, across);
    shapes.iter_mut().for_each(|shape| shape.x += right + 2 * GAP);
    inside.append(&mut shapes);
}

/// The pods: the letters in their colour, the name, the CPUs and the state.
fn list(map: &Map) -> Vec<Shape> {
    const COLUMNS: [Column<Pod>; 3] = [
        column("", |pod| cut(&printable(&pod.pod.to_string()), NAME_COLUMNS)),
        column("", |pod| cut(&pod.cpus.to_string(), DEVICE_COLUMNS)),
        column("", |pod| pod.state.clone()),
    ];
    let text = table(&COLUMNS, &map.pods, false);
    let lines = map.pods.iter().zip(text.lines());
    let lines = lines.map(|(pod, line)| Shape {
        title: pod.mark.owner.clone(),
        ..Shape::line(&pod.mark.class, &pod.letters, line.to_owned())
    });
    lines.collect()
}
