//! The picture, measured: no text meets another, leaves its box or leaves the picture.

use super::super::picture::svg;
use super::nodes::{busy, host, map_of};
use crate::shared::daemon::node::testing::node;
use crate::shared::output::columns;

/// Left, top, right, bottom.
type Area = [f64; 4];

fn within(inner: &Area, outer: &Area) -> bool {
    inner[0] >= outer[0] && inner[1] >= outer[1] && inner[2] <= outer[2] && inner[3] <= outer[3]
}

fn meet(a: &Area, b: &Area) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

/// What a browser would draw.
#[derive(Default)]
struct Drawn {
    size: Area,
    /// With the box that it belongs to.
    texts: Vec<(String, Area, Option<Area>)>,
    boxes: Vec<Area>,
    titles: Vec<String>,
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let rest = tag.split_once(&format!(" {name}=\""))?.1;
    rest.split_once('"').map(|(value, _)| value)
}

fn number(tag: &str, name: &str) -> f64 {
    attribute(tag, name)
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{name} of {tag}"))
}

fn unescaped(text: &str) -> String {
    let pairs = [
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#38;", "&"),
    ];
    pairs
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Reads the elements that `svg` writes; panics at an element that is not closed where it should be.
fn read(svg: &str) -> Drawn {
    let mut drawn = Drawn::default();
    // Of the open group its own box, and whether its text is in the middle.
    let (mut own, mut is_centred) = (None, false);
    let mut names = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("{part}"));
        let name = tag.split_whitespace().next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(names.pop(), Some(name), "{tag}");
            continue;
        }
        if !tag.ends_with('/') {
            names.push(name);
        }
        match name {
            "svg" => drawn.size = [0.0, 0.0, number(tag, "width"), number(tag, "height")],
            "g" => {
                let class = attribute(tag, "class").unwrap_or_default();
                (own, is_centred) = (None, class.starts_with("cpu "));
            }
            "title" => drawn.titles.push(unescaped(text)),
            "rect" if attribute(tag, "class") == Some("paper") => {}
            "rect" => {
                let (left, top) = (number(tag, "x"), number(tag, "y"));
                let area = [left, top, left + number(tag, "width"), top + number(tag, "height")];
                own = Some(area);
                drawn.boxes.push(area);
            }
            "text" => {
                let size = attribute(tag, "font-size").map_or(12.0, |size| size.parse().unwrap());
                // The widest of monospaced fonts: DejaVu and Liberation have 0.60.
                let width = columns(&unescaped(text)) as f64 * size * 0.61;
                let left = number(tag, "x") - if is_centred { width / 2.0 } else { 0.0 };
                // Letters reach so far above and below the line.
                let line = number(tag, "y");
                let area = [left, line - 0.8 * size, left + width, line + 0.25 * size];
                drawn.texts.push((unescaped(text), area, own));
            }
            "style" => {}
            other => panic!("{other} is not expected"),
        }
    }
    assert!(names.is_empty(), "{names:?}");
    drawn
}

fn assert_sound(drawn: &Drawn) {
    for (n, (text, area, own)) in drawn.texts.iter().enumerate() {
        assert!(within(area, &drawn.size), "{text:?} leaves the picture: {area:?}");
        assert!(
            own.is_none_or(|own| within(area, &own)),
            "{text:?} leaves its box: {area:?} of {own:?}"
        );
        for (other, there, _) in &drawn.texts[..n] {
            assert!(!meet(area, there), "{text:?} and {other:?} overlap: {area:?} {there:?}");
        }
        for there in &drawn.boxes {
            let apart = within(area, there) || !meet(area, there);
            assert!(apart, "{text:?} is cut by the edge of {there:?}: {area:?}");
        }
    }
    for (n, own) in drawn.boxes.iter().enumerate() {
        assert!(within(own, &drawn.size), "a box leaves the picture: {own:?}");
        for there in &drawn.boxes[..n] {
            let sound = within(own, there) || within(there, own) || !meet(own, there);
            assert!(sound, "boxes cross: {own:?} {there:?}");
        }
    }
}

#[test]
fn no_text_meets_another_whatever_the_size_and_however_long_the_names() {
    for (cpus, sockets, nodes, vms, a_cache) in [(8, 1, 1, 3, 4), (128, 2, 2, 30, 16), (512, 2, 8, 100, 16)] {
        for name in [2, 253] {
            let files = host(cpus, cpus / nodes, a_cache);
            let mut map = files.map_of(&busy(cpus, sockets, nodes, vms, name));
            map.host = "worker-1.".repeat(7);
            let svg = svg(&map).unwrap();
            let drawn = read(&svg);
            assert_sound(&drawn);
            // Every CPU and every pod is there, with its whole name where it is pointed at.
            for cpu in 0..cpus {
                let title = format!("CPU {cpu}, core ");
                let titles = drawn.titles.iter().filter(|one| one.starts_with(&title));
                assert_eq!(titles.count(), 1, "{title}");
            }
            for pod in &map.pods {
                let whole = pod.pod.to_string();
                assert!(drawn.titles.iter().any(|title| title.contains(&whole)), "{whole}");
            }
            let is_whole = |name: &str| drawn.texts.iter().any(|(text, ..)| text.contains(name));
            assert!(map.pods.iter().all(|pod| is_whole(&pod.pod.to_string()) == (name == 2)));
        }
    }
}

#[test]
fn a_host_of_which_little_is_known_is_drawn_too() {
    let mut map = map_of(&node());
    assert_sound(&read(&svg(&map).unwrap()));
    map.pods.clear();
    map.cores.clear();
    assert_sound(&read(&svg(&map).unwrap()));
}
