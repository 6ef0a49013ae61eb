//! `docs/cluster/cli.md` says what the program does: every line is run on the objects in tests/data/cluster, every member of its JSON is
//! there.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "../../../tests/docs/blocks.rs"]
mod blocks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blocks::{printed, recipes};
use stelia_table::testing::Documented;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page_text() -> String {
    fs::read_to_string(root().join("docs/cluster/cli.md")).expect("a page")
}

#[test]
fn every_line_of_the_page_prints_what_it_says() {
    let program = env!("CARGO_BIN_EXE_stelia-cluster");
    let folder = program.strip_suffix("/stelia-cluster").expect("a folder");
    let path = format!("{folder}:{}", std::env::var("PATH").expect("PATH"));
    let recipes = recipes(&page_text());
    let lines: usize = recipes.iter().map(|recipe| recipe.lines.len()).sum();
    assert!(lines >= 6, "{lines} lines");
    for recipe in recipes {
        let mut output = String::new();
        for line in &recipe.lines {
            let out = Command::new("sh")
                .args(["-c", line])
                .env("PATH", &path)
                .current_dir(root().join("tests/data/cluster"))
                .output()
                .expect("sh");
            output += &String::from_utf8_lossy(&out.stdout);
            output += &String::from_utf8_lossy(&out.stderr);
        }
        for parts in &recipe.prints {
            assert!(
                printed(&output, parts),
                "{:?} did not print {parts:?}:\n{output}",
                recipe.lines
            );
        }
    }
}

#[test]
fn a_node_that_does_not_exist_is_exit_code_3_and_labels_that_no_node_has_are_named() {
    for (words, says) in [
        (&["health", "nope"][..], "there is no node \"nope\""),
        (&["nodes", "nope"], "there is no node \"nope\""),
        (&["vms", "--node", "nope"], "there is no node \"nope\""),
        (&["vms", "-l", "app=web"], "-l selects nodes"),
        (&["health", "-l", "app=web"], "-l selects nodes"),
        (&["vms", "nope"], "no VM fits"),
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_stelia-cluster"))
            .args(words)
            .arg("--from=.")
            .current_dir(root().join("tests/data/cluster"))
            .output()
            .expect("the program");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(3), "{words:?}: {said}");
        assert!(said.contains(says) && out.stdout.is_empty(), "{words:?}: {said}");
    }
}

#[test]
fn every_member_that_is_printed_is_documented() {
    let documented = Documented::of(&page_text());
    let mut wrong = Vec::new();
    for (name, words) in [
        ("JSON of nodes", &["nodes"][..]),
        ("JSON of vms", &["vms"]),
        ("JSON of health", &["health"]),
        ("JSON of why", &["why", "team-a/big"]),
        ("JSON of why", &["why", "-f", "vm.yaml"]),
        ("JSON of plan", &["plan", "-f", "vm.yaml", "--until-full"]),
        ("JSON of plan", &["plan", "-c", "cpus=64,memory=1Gi"]),
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_stelia-cluster"))
            .args(words)
            .args(["--json=short", "--from=.", "--from=-"])
            .current_dir(root().join("tests/data/cluster"))
            .output()
            .expect("the program");
        let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|cause| panic!("{words:?}: {cause}: {out:?}"));
        let here = documented.wrong(name, &value);
        wrong.extend(here.into_iter().map(|what| format!("{name}: {what}")));
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
