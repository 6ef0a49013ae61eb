//! The names of node tests in `tests/node/sections` and `tests/node/seconds` are names of tests.

use std::collections::BTreeSet;

use crate::{files, read, root};

/// Every node test, as `module::function`.
fn node_tests() -> BTreeSet<String> {
    let folder = root().join("tests/node");
    let mut tests = BTreeSet::new();
    for file in files(&folder, "rs") {
        let path = file.strip_prefix(&folder).expect("below").with_extension("");
        let parts = path.components().map(|part| part.as_os_str().to_str().expect("text"));
        let module: Vec<&str> = parts.filter(|part| *part != "mod").collect();
        let (mut module, mut is_test) = (module.join("::"), false);
        for line in read(&file).lines().map(str::trim) {
            // A module within a file stands at its end.
            if let Some(inner) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
                module = format!("{module}::{inner}");
            }
            if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_test) {
                let name = rest.split('(').next().expect("a name");
                tests.insert(format!("{module}::{name}"));
            }
            is_test = line == "#[test]" || line == "#[rstest]" || (is_test && line.starts_with(['#', '/']));
        }
    }
    tests
}

#[test]
fn every_section_names_node_tests_that_exist() {
    let tests = node_tests();
    assert!(tests.len() > 100, "{tests:?}");
    let sections = read(&root().join("tests/node/sections"));
    let lines = sections.lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let (section, names) = line.split_once(' ').expect("a section and names");
        for name in names.split(' ') {
            let exists = tests.iter().any(|test| test.contains(name));
            assert!(
                exists,
                "section {section} names {name}, which is the beginning of no test's name"
            );
        }
    }
}

#[test]
fn every_measured_time_is_that_of_a_node_test() {
    let tests = node_tests();
    for line in read(&root().join("tests/node/seconds")).lines() {
        let (_, name) = line.split_once(' ').expect("seconds and a name");
        // A test with cases has their names after its own.
        let exists = tests.iter().any(|test| {
            name.strip_prefix(test.as_str())
                .is_some_and(|case| case.is_empty() || case.starts_with("::"))
        });
        assert!(exists, "there is no node test {name}");
    }
}
