//! Boxes as SVG. Names of pods and devices are text of others: all of them pass through [`escaped`].

use std::fmt::Write as _;

use super::Map;
use super::boxes::Shape;
use super::layout::picture;
use crate::shared::output::escaped;

/// Whatever the browser's colours are, those of a picture in a file are chosen by it alone; `@media` is read by browsers.
const STYLE: &str = include_str!("svg.css");

/// The picture as a file of its own.
pub(super) fn file(map: &Map) -> String {
    let picture = picture(map);
    let (width, height) = (picture.width, picture.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"monospace\">\n<style>\n{STYLE}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
    );
    write(&mut out, &picture);
    out + "</svg>\n"
}

fn write(out: &mut String, shape: &Shape) {
    let class = if shape.class.is_empty() {
        String::new()
    } else {
        format!(" class=\"{}\"", shape.class)
    };
    let _ = write!(out, "<g{class}>");
    if !shape.title.is_empty() {
        let _ = write!(out, "<title>{}</title>", escaped(&shape.title));
    }
    if !shape.class.is_empty() {
        let Shape {
            x, y, width, height, ..
        } = shape;
        let _ = write!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>");
    }
    for label in shape.labels.iter().filter(|label| !label.text.is_empty()) {
        let centred = if label.centred { " text-anchor=\"middle\"" } else { "" };
        let (x, y, size) = (label.x, label.y, label.size);
        let text = escaped(&label.text);
        let _ = write!(
            out,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{centred}>{text}</text>"
        );
    }
    for inner in &shape.inside {
        write(out, inner);
    }
    out.push_str("</g>\n");
}
