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

#[test]
fn without_certificates_it_listens_on_loopback_only() {
    let output = program(&["--listen", "0.0.0.0:0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("not on loopback: --tls-cert and --tls-key are needed"),
        "{said}"
    );
    output.assert().code(1);
}

#[test]
fn files_that_are_missing_are_named() {
    let output = program(&["--kubeconfig", "/nonexistent/kubeconfig"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(": /nonexistent/kubeconfig: "), "{said}");
    output.assert().code(1);
    let output = program(&[
        "--tls-cert",
        "/nonexistent/tls.crt",
        "--tls-key",
        "/nonexistent/tls.key",
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/nonexistent/tls."), "{said}");
    output.assert().code(1);
}

#[test]
fn help_and_completions() {
    let output = program(&["--help"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for named in [
        "/filter",
        "/prioritize",
        "/preempt",
        "/bind",
        "/healthz",
        "/readyz",
        "/leader",
        "/metrics",
        "--tls-client-ca",
    ] {
        assert!(said.contains(named), "{named}");
    }
    output.assert().success();
}

/// It is in no PATH, so what the package installs cannot ask it.
#[test]
fn the_packaged_completions_are_what_it_prints() {
    let packaged = [
        ("bash", "stelia-placement.bash"),
        ("zsh", "_stelia-placement"),
        ("fish", "stelia-placement.fish"),
    ];
    for (shell, file) in packaged {
        let path = format!("{}/../../packaging/completions/{file}", env!("CARGO_MANIFEST_DIR"));
        let committed = std::fs::read_to_string(&path).unwrap_or_else(|cause| panic!("read {path}: {cause}"));
        let printed = program(&["--completions", shell]);
        assert!(printed.status.success(), "{shell}");
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert!(
            printed == committed,
            "{path}: stelia-placement --completions {shell} prints something else"
        );
    }
}
