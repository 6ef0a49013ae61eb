//! The files in `packaging/completions/` for this program, in the shells they are for.

#![allow(clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/completions");
const PROGRAM: &str = env!("CARGO_BIN_EXE_stelia-cluster");

/// A PATH on which the program is found.
fn path() -> String {
    let folder = Path::new(PROGRAM).parent().expect("a folder");
    format!("{}:/usr/bin:/bin", folder.display())
}

fn run(command: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a folder");
    let output = Command::new(command[0])
        .args(&command[1..])
        .env("PATH", path())
        .env("HOME", home.path())
        .output();
    let output = output.unwrap_or_else(|e| panic!("{} cannot be run (make setup installs it): {e}", command[0]));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn bash_completes_a_command() {
    let text = format!(
        "source {FILES}/stelia-cluster.bash; f=$(complete -p stelia-cluster | sed 's/.*-F \\([^ ]*\\).*/\\1/'); \
         COMP_WORDS=(stelia-cluster nod); COMP_CWORD=1; $f stelia-cluster nod x; echo ${{COMPREPLY[@]}}"
    );
    assert_eq!(run(&["bash", "--norc", "-c", &text]).trim(), "nodes");
}

#[test]
fn fish_completes_a_command() {
    let text = format!("source {FILES}/stelia-cluster.fish; complete -C 'stelia-cluster nod'");
    let said = run(&["fish", "--no-config", "-c", &text]);
    assert_eq!(said.split_whitespace().next(), Some("nodes"), "{said}");
}

#[test]
fn zsh_finds_the_function_that_the_program_prints() {
    let file = std::fs::read_to_string(Path::new(FILES).join("_stelia-cluster")).expect("the file");
    let called = file.lines().last().and_then(|line| line.split(' ').next());
    let called = called.expect("a call");
    assert!(
        run(&[PROGRAM, "completions", "zsh"]).contains(&format!("function {called}()")),
        "{called}"
    );
    run(&["zsh", "-n", &format!("{FILES}/_stelia-cluster")]);
}
