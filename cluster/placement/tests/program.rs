//! The program itself, as a process.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::process::Command;

use assert_cmd::assert::OutputAssertExt;

fn program(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_stelia-placement"))
        .args(arguments)
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

/// What it says when it ends with 1.
fn failed(arguments: &[&str]) -> String {
    let output = program(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output.assert().code(1);
    said
}

#[test]
fn without_certificates_it_listens_on_loopback_only() {
    assert!(failed(&["--listen", "0.0.0.0:0"]).contains("not on loopback"));
}

#[test]
fn files_that_are_missing_are_named() {
    let said = failed(&["--kubeconfig", "/nonexistent/kubeconfig"]);
    assert!(said.contains(": /nonexistent/kubeconfig: "), "{said}");
    let said = failed(&["--tls-cert=/nonexistent/tls.crt", "--tls-key=/nonexistent/tls.key"]);
    assert!(said.contains("/nonexistent/tls."), "{said}");
}

#[test]
fn help_and_completions() {
    let output = program(&["--help"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = "/filter /prioritize /preempt /bind /healthz /readyz /leader /metrics --tls-client-ca";
    for named in paths.split(' ') {
        assert!(said.contains(named), "{named}");
    }
    output.assert().success();
}

/// It is in no PATH, so what the package installs cannot ask it.
#[test]
fn the_packaged_completions_are_what_it_prints() {
    let (bash, fish) = ("stelia-placement.bash", "stelia-placement.fish");
    let packaged = [("bash", bash), ("zsh", "_stelia-placement"), ("fish", fish)];
    for (shell, file) in packaged {
        let path = format!("{}/../../packaging/completions/{file}", env!("CARGO_MANIFEST_DIR"));
        let committed = std::fs::read_to_string(&path).unwrap_or_else(|cause| panic!("read {path}: {cause}"));
        let printed = program(&["--completions", shell]);
        assert!(printed.status.success(), "{shell}");
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert!(printed == committed);
    }
}
