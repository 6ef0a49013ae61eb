//! What the packages install points only at what they install: whoever reads it has no clone of the repository.

use std::collections::BTreeMap;
use std::fs;

use crate::{quoted, read, root};

const DOCUMENTS: &str = "/usr/share/doc/steliad/";
const EXAMPLES: &str = "/usr/share/doc/steliad/examples/";
/// Pages about the repository itself.
const OF_THE_REPOSITORY: [&str; 3] = ["architecture.md", "decisions.md", "packages.md"];

/// The places of the files that the .deb installs, each with its source; the other packages are held to it.
fn installed() -> BTreeMap<String, String> {
    let manifest: toml::Table = read(&root().join("Cargo.toml")).parse().expect("TOML");
    let assets = manifest["package"]["metadata"]["deb"]["assets"]
        .as_array()
        .expect("a list");
    let mut places = BTreeMap::new();
    for asset in assets {
        let [source, place] = [0, 1].map(|number| asset[number].as_str().expect("a path"));
        let (folder, pattern) = source.rsplit_once('/').unwrap_or(("", source));
        let names = match pattern.split_once('*') {
            Some((beginning, ending)) => {
                let files = fs::read_dir(root().join(folder)).expect(folder).flatten();
                let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
                names
                    .filter(|name| name.starts_with(beginning) && name.ends_with(ending))
                    .collect()
            }
            None => vec![pattern.to_owned()],
        };
        for name in names {
            let file = if place.ends_with('/') { name.as_str() } else { "" };
            places.insert(format!("/{place}{file}"), format!("{folder}/{name}"));
        }
    }
    places
}

/// Where a reader would look for what a word of a line names; `None` when it names no file of ours.
fn place(word: &str, line: &str) -> Option<String> {
    let below = |folder: &str, name: &str| Some(format!("{folder}{name}"));
    match word.split_once('/') {
        _ if line.contains("of the repository") => None,
        // A source, with the place beside it.
        Some(("packaging", _)) if line.contains("`/usr/share/") => None,
        Some(("packaging", _)) => Some(word.to_owned()),
        Some(("docs", name)) => below(DOCUMENTS, name),
        Some(("cluster", name)) if name.ends_with(".md") => below(DOCUMENTS, word),
        Some(("examples", name)) => below(EXAMPLES, name),
        Some(("", rest)) if rest.starts_with("usr/share/doc/steliad/") => Some(word.to_owned()),
        None if word.starts_with("vm") && word.ends_with(".yaml") => below(EXAMPLES, word),
        None if word.ends_with(".md") => below(DOCUMENTS, word),
        _ => None,
    }
}

fn assert_installed(installed: &BTreeMap<String, String>, page: &str, line: &str, word: &str) -> bool {
    let Some(place) = place(word, line) else {
        return false;
    };
    let folder = format!("{}/", place.trim_end_matches('/'));
    let is_there = installed.contains_key(&place) || installed.keys().any(|file| file.starts_with(&folder));
    assert!(is_there, "{page} points at {word}, which is not installed: {line}");
    true
}

#[test]
fn the_pages_point_at_what_is_installed() {
    let installed = installed();
    assert!(
        installed.contains_key("/usr/share/doc/steliad/examples/vm.yaml"),
        "{installed:?}"
    );
    let mut seen = 0;
    for (place, source) in installed.iter().filter(|(place, _)| place.starts_with(DOCUMENTS)) {
        let name = place.trim_start_matches(DOCUMENTS);
        if !name.ends_with(".md") || OF_THE_REPOSITORY.contains(&name) {
            continue;
        }
        let text = read(&root().join(source));
        let outside: String = text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n");
        for line in outside.lines() {
            let words = quoted(line)
                .into_iter()
                .filter_map(|word| Some(word.split_whitespace().next()?.to_owned()));
            let links = line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split([')', '#']).next());
            let links = links.filter(|link| !link.is_empty()).map(str::to_owned);
            for word in words.chain(links) {
                seen += usize::from(assert_installed(&installed, name, line, &word));
            }
        }
    }
    assert!(seen >= 50, "{seen}");
}

#[test]
fn the_examples_point_at_what_is_installed() {
    let installed = installed();
    let mut seen = 0;
    let manifests = |place: &&String| place.starts_with(EXAMPLES) && place.ends_with(".yaml");
    for place in installed.keys().filter(manifests) {
        let name = place.trim_start_matches(EXAMPLES);
        let text = read(&root().join("packaging/kubernetes").join(name));
        for line in text.lines().filter(|line| line.trim_start().starts_with('#')) {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !"-./_".contains(c));
            for word in words.map(|word| word.trim_end_matches('.')) {
                seen += usize::from(assert_installed(&installed, name, line, word));
            }
        }
    }
    assert!(seen >= 5, "{seen}");
}
