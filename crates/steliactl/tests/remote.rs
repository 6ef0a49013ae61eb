//! `-H` against an ssh that only says what it was asked.

#![allow(clippy::expect_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use assert_cmd::Command;

#[test]
fn the_command_runs_on_the_other_host_and_its_exit_code_is_passed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let ssh = folder.path().join("ssh");
    // As ssh does it: what follows the host is one line for a shell.
    let script = "#!/bin/sh\necho \"$1 $2 $3\"\nshift 3\neval \"printf '<%s>' $*\"\nexit 3\n";
    fs::write(&ssh, script).expect("ssh");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("ssh");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("PATH"));
    let steliactl = |line: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_steliactl"));
        program.env("PATH", &path).args(line).assert()
    };
    steliactl(&["-H", "root@node-7", "show", "--json", "it's a VM"])
        .code(3)
        .stdout("-xT -- root@node-7\n<steliactl><show><--json><it's a VM>");
    // Without a terminal `top` gets none either.
    steliactl(&["top", "--host=node-7"])
        .code(3)
        .stdout("-xT -- node-7\n<steliactl><top>");
    let refused = steliactl(&["-H=-oProxyCommand=x", "list"]).code(2);
    assert_eq!(refused.get_output().stdout, b"");
}
