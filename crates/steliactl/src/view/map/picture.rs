//! The map as SVG: of each NUMA node a box with its L3 caches, their cores and CPUs; below them a legend and a list of pods. Everything of one
//! kind has one size, and lengths are pixels.

use askama::Template;

use super::text::{PODS, devices, heading};
use super::{Core, Cpu, Map, signs};
use crate::shared::output::{TextStyle, columns, cut, printable, table};

/// Across and down.
type Pair = [usize; 2];

/// A picture in a file. Whatever the browser's colours are, it chooses its own: `templates/map.css`.
#[derive(Template)]
#[template(path = "map.svg")]
struct Picture {
    width: usize,
    height: usize,
    host: String,
    extent: String,
    shapes: Vec<Shape>,
}

/// A box with a text.
struct Shape {
    place: Pair,
    size: Pair,
    /// Classes of the style sheet; without any the box itself is not drawn.
    class: String,
    /// The whole text that pointing at it shows; empty: none.
    title: String,
    text: String,
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
/// The smallest width of what is drawn, because the names of pods need room, and the greatest if not one core alone is wider.
const WIDTHS: Pair = [760, 1600];

/// How wide a text is at most: monospaced fonts have letters of 0.55 to 0.61 of their size.
fn text_width(text: &str) -> usize {
    (columns(text) * TEXT_SIZE * 5).div_ceil(8)
}

/// How many of this size fit beside each other.
fn fitting(width: usize, size: Pair) -> usize {
    (width / (size[0] + GAP)).max(1)
}

/// The size of a box with a name, and in it so many of one size.
fn around(size: Pair, across: usize, count: usize) -> Pair {
    let down = count.div_ceil(across.max(1));
    [
        across * (size[0] + GAP) - GAP + 2 * PAD,
        LINE + down * (size[1] + GAP) - GAP + PAD,
    ]
}

impl Shape {
    /// Where the text begins; its middle in the box of a CPU.
    fn text_x(&self) -> usize {
        self.place[0]
            + if self.class.starts_with("cpu ") {
                self.size[0] / 2
            } else {
                PAD
            }
    }
}

impl Picture {
    fn add(&mut self, class: &str, place: Pair, size: Pair, text: String) -> &mut Shape {
        self.shapes.push(Shape {
            place,
            size,
            class: class.to_owned(),
            title: String::new(),
            text,
        });
        let last = self.shapes.len() - 1;
        &mut self.shapes[last]
    }

    /// Draws each at its place: so many beside each other.
    fn grid<T>(&mut self, [x, y]: Pair, size: Pair, across: usize, all: &[T], draw: impl Fn(&mut Self, Pair, &T)) {
        for (at, one) in all.iter().enumerate() {
            let place = [x + at % across * (size[0] + GAP), y + at / across * (size[1] + GAP)];
            draw(self, place, one);
        }
    }

    /// Samples of CPUs' signs with a text beside each, below what there is, in as many columns as fit.
    fn samples(&mut self, all: &[(String, &str, String, &str)]) {
        let widest = all.iter().map(|(_, _, text, _)| text_width(text)).max().unwrap_or(0);
        let size = [SAMPLE_WIDTH + 3 * GAP + widest, CELL_HEIGHT];
        let across = fitting(self.width - 2 * MARGIN, size);
        let place = [MARGIN, self.height];
        self.grid(
            place,
            size,
            across,
            all,
            |picture, [x, y], (class, mark, text, title)| {
                let sample = [SAMPLE_WIDTH, CELL_HEIGHT];
                picture.add(&format!("cpu {class}"), [x, y], sample, (*mark).to_owned());
                let beside = [x + SAMPLE_WIDTH, y];
                picture.add("", beside, [widest, CELL_HEIGHT], text.clone()).title = (*title).to_owned();
            },
        );
        self.height += all.len().div_ceil(across) * (CELL_HEIGHT + GAP) + GAP;
    }
}

/// What is written into a CPU's box. Shared CPUs are known by their colour.
fn cpu_text(cpu: &Cpu) -> String {
    if cpu.mark.sign == signs::SHARED {
        cpu.cpu.to_string()
    } else {
        format!("{}{}", cpu.cpu, cpu.mark.text)
    }
}

/// The picture: a heading, the NUMA nodes, what each sign means, and the pods.
///
/// # Errors
/// It cannot be written.
pub(super) fn svg(map: &Map) -> Result<String, askama::Error> {
    let nodes: Vec<&[Core]> = map.numa_nodes().collect();
    let caches = |cores: &'_ [Core]| {
        cores
            .chunk_by(|a, b| a.l3 == b.l3)
            .map(<[Core]>::to_vec)
            .collect::<Vec<_>>()
    };
    let most = |counts: &mut dyn Iterator<Item = usize>| counts.max().unwrap_or(1);
    let cpus = || map.cores.iter().flat_map(|core| &core.cpus);
    let cpu = [
        most(&mut cpus().map(|cpu| text_width(&cpu_text(cpu)))) + PAD,
        CELL_HEIGHT,
    ];
    let threads = most(&mut map.cores.iter().map(|core| core.cpus.len()));
    let core = around(cpu, threads, threads);
    let cores = most(&mut nodes.iter().flat_map(|node| caches(node)).map(|cores| cores.len()));
    let cores_across = (2 * cores.isqrt()).min(cores).min(fitting(WIDTHS[1], core));
    let cache = around(core, cores_across, cores);
    let caches_across = most(&mut nodes.iter().map(|node| caches(node).len())).min(fitting(WIDTHS[1], cache));
    let width = around(cache, caches_across, 1)[0].max(WIDTHS[0]);
    let mut picture = Picture {
        width: width + 2 * MARGIN,
        height: HEADING,
        host: cut(&printable(&map.host), width * 8 / (HOST_SIZE * 5)),
        extent: map.extent(),
        shapes: Vec::new(),
    };
    for node in nodes {
        let (place, caches) = ([MARGIN, picture.height], caches(node));
        let size = [width, around(cache, caches_across, caches.len())[1]];
        picture.add("node", place, size, heading(map, node));
        let inside = |[x, y]: Pair| [x + PAD, y + LINE];
        picture.grid(inside(place), cache, caches_across, &caches, |picture, place, cores| {
            if let Some(l3) = cores.first().and_then(|core| core.l3.as_ref()) {
                picture.add("cache", place, cache, l3.title());
            }
            picture.grid(inside(place), core, cores_across, cores, |picture, place, one| {
                picture.add("core", place, core, format!("Core {}", one.core));
                picture.grid(inside(place), cpu, threads, &one.cpus, |picture, place, one| {
                    let class = format!("cpu {}", one.mark.class);
                    picture.add(&class, place, cpu, cpu_text(one)).title =
                        format!("CPU {}: {}", one.cpu, one.mark.owner);
                });
            });
        });
        picture.height += size[1] + GAP;
    }
    picture.height += GAP;
    let signs = map.signs(&map.pods).into_iter();
    let signs = signs.map(|sign| (sign.class.to_owned(), sign.text, sign.meaning.to_owned(), ""));
    picture.samples(&signs.collect::<Vec<_>>());
    let room = (width - SAMPLE_WIDTH - 3 * GAP) * 8 / (TEXT_SIZE * 5);
    let style = TextStyle {
        width: Some(room),
        ..TextStyle::default()
    };
    let lines = table(&PODS[1..], &map.pods, style);
    let titles: Vec<String> = map
        .pods
        .iter()
        .map(|pod| format!("{}; {}", pod.mark.owner, devices(pod)))
        .collect();
    let pods = map.pods.iter().zip(&titles).zip(lines.lines());
    let pods = pods.map(|((pod, title), line)| {
        (
            pod.mark.class.clone(),
            pod.letters.as_str(),
            line.to_owned(),
            title.as_str(),
        )
    });
    picture.samples(&pods.collect::<Vec<_>>());
    picture.render()
}
