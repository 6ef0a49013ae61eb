//! The map as SVG: the lines of the text with a box for each CPU, a legend and a list of pods. Lengths are pixels.

use askama::Template;

use super::text::{PODS, heading, label_width, rows};
use super::{Cpu, Map, signs};
use crate::shared::output::{TextStyle, columns, cut, printable, table};

/// A picture in a file. Whatever the browser's colours are, it chooses its own: `templates/map.css`.
#[derive(Template)]
#[template(path = "map.svg")]
struct Picture {
    width: usize,
    /// Of what is drawn so far.
    height: usize,
    host: String,
    extent: String,
    shapes: Vec<Shape>,
}

/// A box with a text in its middle, or a text alone.
struct Shape {
    x: usize,
    y: usize,
    /// Of the box; 0: there is none.
    width: usize,
    /// Classes of the style sheet.
    class: String,
    /// The whole text that pointing at it shows; empty: none.
    title: String,
    text: String,
}

/// The letters' size, as in the template.
const TEXT_SIZE: usize = 12;
const HOST_SIZE: usize = 17;
const MARGIN: usize = 10;
/// The height of the heading, and that of each line.
const HEADING: usize = 58;
const LINE: usize = 22;
const GAP: usize = 8;
const SAMPLE_WIDTH: usize = 36;
/// The least width, because the names of pods need room, and what a line of cores may take.
const MIN_WIDTH: usize = 760;
const MAX_WIDTH: usize = 1600;

/// How wide a text is at most: monospaced fonts have letters of 0.55 to 0.61 of their size.
fn text_width(columns: usize) -> usize {
    (columns * TEXT_SIZE * 5).div_ceil(8)
}

impl Picture {
    /// Adds a text, in a box of this width unless that is 0, to the line that is drawn now.
    fn add(&mut self, x: usize, width: usize, class: &str, text: &str, title: String) {
        self.shapes.push(Shape {
            x,
            y: self.height,
            width,
            class: class.to_owned(),
            title,
            text: text.to_owned(),
        });
    }

    /// A line with a sample of a CPU's sign and a text beside it.
    fn sample(&mut self, class: &str, mark: &str, text: &str, title: String) {
        self.add(MARGIN, SAMPLE_WIDTH, class, mark, String::new());
        self.add(MARGIN + SAMPLE_WIDTH + GAP, 0, "", text, title);
        self.height += LINE;
    }
}

/// What is written into a CPU's box. Shared CPUs are known by their colour.
fn cpu_text(cpu: &Cpu) -> String {
    let mark = if cpu.mark.sign == signs::SHARED {
        ""
    } else {
        &cpu.mark.text
    };
    format!("{}{mark}", cpu.cpu)
}

/// The picture: a heading, the cores of each NUMA node, what each sign means, and the pods.
pub(super) fn svg(map: &Map) -> Result<String, askama::Error> {
    let cpus = map.cores.iter().flat_map(|core| &core.cpus);
    let cell = text_width(cpus.map(|cpu| columns(&cpu_text(cpu))).max().unwrap_or(0)) + GAP;
    let core = map.cores.iter().map(|core| core.cpus.len()).max().unwrap_or(1) * cell + GAP;
    let label = MARGIN + text_width(label_width(map)) + GAP;
    let lines: Vec<_> = map
        .numa_nodes()
        .map(|cores| (cores, rows(map, cores, core, MAX_WIDTH)))
        .collect();
    let longest = lines
        .iter()
        .flat_map(|(_, rows)| rows)
        .map(|(_, cores)| cores.len())
        .max();
    let width = (label + longest.unwrap_or(0) * core).max(MIN_WIDTH);
    let mut picture = Picture {
        width: width + MARGIN,
        height: HEADING,
        host: cut(&printable(&map.host), width * 8 / (HOST_SIZE * 5)),
        extent: map.extent(),
        shapes: Vec::new(),
    };
    for (cores, rows) in lines {
        picture.add(MARGIN, 0, "", &heading(map, cores), String::new());
        picture.height += LINE;
        for (name, cores) in rows {
            picture.add(MARGIN, 0, "", &name, String::new());
            for (at, one) in (0..).zip(cores) {
                for (beside, cpu) in (0..).zip(&one.cpus) {
                    let title = format!("CPU {}, core {}: {}", cpu.cpu, one.core, cpu.mark.owner);
                    picture.add(
                        label + at * core + beside * cell,
                        cell,
                        &cpu.mark.class,
                        &cpu_text(cpu),
                        title,
                    );
                }
            }
            picture.height += LINE;
        }
        picture.height += GAP;
    }
    for sign in map.signs(&map.pods) {
        picture.sample(sign.class, sign.text, sign.meaning, String::new());
    }
    picture.height += GAP;
    let style = TextStyle {
        width: Some((width - MARGIN - SAMPLE_WIDTH - GAP) * 8 / (TEXT_SIZE * 5)),
        ..TextStyle::default()
    };
    for (pod, line) in map.pods.iter().zip(table(&PODS[1..], &map.pods, style).lines()) {
        picture.sample(&pod.mark.class, &pod.mark.text, line, pod.mark.owner.clone());
    }
    picture.render()
}
