//! Every line of `docs/planner.md` is run, against the node and the pod in `tests/data/plan/`.

#![allow(clippy::expect_used)]

#[path = "../../../tests/docs/blocks.rs"]
mod blocks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blocks::{printed, recipes};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a page")
}

#[test]
fn every_line_of_the_planners_page_prints_what_it_says() {
    let program = env!("CARGO_BIN_EXE_steliactl");
    let folder = program.strip_suffix("/steliactl").expect("a folder");
    let path = format!("{folder}:{}", std::env::var("PATH").expect("PATH"));
    let recipes = recipes(&read(&root().join("docs/planner.md")));
    let lines: usize = recipes.iter().map(|recipe| recipe.lines.len()).sum();
    assert!(lines >= 7, "{lines} lines");
    for recipe in recipes {
        let mut output = String::new();
        for line in &recipe.lines {
            let out = Command::new("sh")
                .args(["-c", line])
                .env("PATH", &path)
                .current_dir(root().join("tests/data/plan"))
                .output()
                .expect("sh");
            assert!(out.status.success(), "{line}: {out:?}");
            output += &String::from_utf8_lossy(&out.stdout);
        }
        assert!(!recipe.prints.is_empty(), "{:?}", recipe.lines);
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
fn the_exit_code_tells_whether_the_pod_is_admitted() {
    let plan = |pod: &str| {
        let mut program = assert_cmd::Command::new(env!("CARGO_BIN_EXE_steliactl"));
        program.current_dir(root().join("tests/data/plan"));
        program.args(["plan", "--node", "worker.json", "-c", pod]).assert()
    };
    plan("cpus=8,memory=16Gi").code(0).stderr("");
    let rejected = plan("cpus=3,memory=1Gi").code(1);
    let said = String::from_utf8_lossy(&rejected.get_output().stderr).into_owned();
    assert!(
        said.contains("kubelet would reject the pod: SMTAlignmentError"),
        "{said}"
    );
    plan("cpus=x").code(2).stdout("");
}
