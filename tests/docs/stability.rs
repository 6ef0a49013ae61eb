//! What an earlier release offered to other programs is still there: `tests/data/contract-VERSION/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stelia_settings::Fragment;
use steliactl::metrics::definitions::{ALL, Kind};
use zbus_xml::{Interface, Node};

use crate::{read, root};

/// The folder of each release that is kept, with its name.
fn contracts() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("tests/data"))
        .expect("a folder")
        .flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("contract-")
    });
    let folders: Vec<PathBuf> = folders.collect();
    assert!(!folders.is_empty());
    folders
}

/// Methods and signals with their arguments' types and names, properties with type and access: a line each.
fn offered(interface: &Interface<'_>) -> BTreeSet<String> {
    let args = |args: &[zbus_xml::Arg<'_>]| -> String {
        let text = args
            .iter()
            .map(|arg| format!(" {:?} {} {:?}", arg.direction(), arg.ty(), arg.name()));
        text.collect()
    };
    let methods = interface
        .methods()
        .map(|method| format!("method {}{}", method.name(), args(method.args())));
    let signals = interface
        .signals()
        .map(|signal| format!("signal {}{}", signal.name(), args(signal.args())));
    let properties = interface
        .properties()
        .map(|property| format!("property {} {} {:?}", property.name(), property.ty(), property.access()));
    methods.chain(signals).chain(properties).collect()
}

/// What an interface file offers, with the interface's name in front.
fn interface(path: &Path) -> BTreeSet<String> {
    let text = read(path);
    let node = Node::try_from(text.as_str()).expect("an interface");
    let one = &node.interfaces()[0];
    offered(one)
        .into_iter()
        .map(|line| format!("{} {line}", one.name()))
        .collect()
}

#[test]
fn nothing_of_an_earlier_interface_is_gone() {
    for folder in contracts() {
        let mut seen = 0;
        for earlier in crate::files(&folder, "xml") {
            let now = root()
                .join("dbus-interfaces")
                .join(earlier.file_name().expect("a name"));
            let (earlier, now) = (interface(&earlier), interface(&now));
            let gone: Vec<&String> = earlier.difference(&now).collect();
            assert!(gone.is_empty(), "{}: {gone:#?}", folder.display());
            seen += earlier.len();
        }
        assert!(seen >= 30, "{}: {seen}", folder.display());
    }
}

#[test]
fn every_setting_of_an_earlier_release_is_still_taken() {
    for folder in contracts() {
        let text = read(&folder.join("steliad.toml"));
        assert!(text.lines().count() >= 10);
        for line in text.lines() {
            let taken = Fragment::parse(line, &folder).and_then(Fragment::check);
            assert!(taken.is_ok(), "{}: {line}: {taken:?}", folder.display());
        }
    }
}

#[test]
fn every_metric_of_an_earlier_release_is_still_there() {
    let now: BTreeMap<String, (String, BTreeSet<&str>)> = ALL
        .iter()
        .map(|definition| {
            let ending = if definition.kind == Kind::Counter { "_total" } else { "" };
            let kind = format!("{:?}", definition.kind).to_lowercase();
            let labels = definition.labels.iter().copied().collect();
            (format!("{}{ending}", definition.name), (kind, labels))
        })
        .collect();
    for folder in contracts() {
        let text = read(&folder.join("metrics"));
        assert!(text.lines().count() >= 20);
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (name, kind) = (words.next().expect("a name"), words.next().expect("a type"));
            let (kind_now, labels_now) = now.get(name).unwrap_or_else(|| panic!("{name} is gone"));
            assert_eq!(kind, kind_now, "{name}");
            let labels: BTreeSet<&str> = words.next().into_iter().flat_map(|labels| labels.split(',')).collect();
            assert!(labels.is_subset(labels_now), "{name}: {labels:?}, now {labels_now:?}");
        }
    }
}

/// The test node's recipes name their kernel and systemd; the page of what was seen has both.
#[test]
fn the_support_matrix_has_the_versions_of_the_test_nodes() {
    let page = read(&root().join("docs/support.md"));
    for image in ["trixie", "bookworm", "sid"] {
        let recipe = read(&root().join("tests/vm/images").join(image));
        let head: String = recipe.lines().take_while(|line| line.starts_with('#')).collect();
        let after = |word: &str| -> String {
            let rest = head.split_once(word).unwrap_or_else(|| panic!("{image}: no {word}")).1;
            rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect()
        };
        let (kernel, systemd) = (after("kernel "), after("systemd "));
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {image} |")))
            .unwrap_or_else(|| panic!("docs/support.md has no row of {image}"));
        for version in [kernel.trim_end_matches('.'), systemd.trim_end_matches('.')] {
            assert!(row.contains(&format!("| {version} |")), "{image}: {version}: {row}");
            let seen = page
                .lines()
                .any(|line| line.starts_with(&format!("| {version} |")) && line.contains(image));
            assert!(seen, "docs/support.md: {version} was seen on {image}");
        }
    }
}
