//! `steliactl cluster` runs stelia-cluster where that is installed.

#![allow(clippy::expect_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use assert_cmd::Command;

#[test]
fn the_other_program_gets_the_words_and_its_exit_code_is_passed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let steliactl = |line: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_steliactl"));
        program.env("PATH", folder.path()).args(line).assert()
    };
    let missing = steliactl(&["cluster", "nodes"]).code(1);
    let said = String::from_utf8_lossy(&missing.get_output().stderr).into_owned();
    assert!(said.contains("it is in the package stelia-cluster"), "{said}");

    let program = folder.path().join("stelia-cluster");
    fs::write(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 3\n").expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
    steliactl(&["cluster", "why", "a b", "-o", "wide", "--from=-", "--help"])
        .code(3)
        .stdout("<why><a b><-o><wide><--from=-><--help>");
    // Options in front of the word are this program's own.
    let wrong = steliactl(&["-o", "json", "cluster", "nodes"]).code(2);
    assert_eq!(wrong.get_output().stdout, b"");
}
