//! What `make` says of what it cannot make, before anything is built, and what its tools say of what this host lacks. Nothing is built or installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const HOST: &str = "HOST=x86_64-unknown-linux-gnu";

/// A command in the repository, without what the `make` that runs this test was told.
fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    for told in [
        "MAKEFLAGS",
        "MAKEOVERRIDES",
        "MFLAGS",
        "MAKELEVEL",
        "ARCH",
        "TARGET",
        "HOST",
        "IMAGE",
        "FAST",
        "OPTIONAL",
        "VFIO",
        "NODE_CPUS",
        "NOT_RUN",
    ] {
        command.env_remove(told);
    }
    command
}

/// Whether it succeeded, and what it printed: output and errors.
fn ran(mut command: Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("a command");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.success(), text(stdout), text(stderr))
}

fn make(words: &[&str]) -> (bool, String, String) {
    ran(command("make", &[&["-n"], words].concat()))
}

/// A folder of scripts that are found in PATH before anything else.
struct Pretended(TempDir);

impl Pretended {
    fn new(scripts: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, script) in scripts {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        Self(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn with(&self, program: &str, arguments: &[&str]) -> Command {
        let path = std::env::var("PATH").expect("PATH");
        let mut command = command(program, arguments);
        command.env("PATH", format!("{}:{path}", self.0.path().display()));
        command
    }
}

#[test]
fn what_contradicts_itself_is_refused_before_anything_is_built() {
    let trixie = "IMAGE=trixie is a node of amd64, and ARCH=arm64";
    let of_arm64 = "IMAGE=trixie-arm64 is a node of arm64, and ARCH=amd64";
    let node = "the test node needs an amd64 host: this one is arm64";
    let arm64 = "HOST=aarch64-unknown-linux-gnu";
    let cases: [(&[&str], &str); 12] = [
        (&["node-test", HOST, "ARCH=arm64"], trixie),
        (&["check", HOST, "ARCH=aarch64"], trixie),
        (&["node-test", HOST, "IMAGE=trixie-arm64", "ARCH=amd64"], of_arm64),
        (&["demo", HOST, "IMAGE=trixie-arm64", "ARCH=x86_64"], of_arm64),
        (
            &["node-test", HOST, "IMAGE=trixie-arm64", "VFIO=1"],
            "VFIO and NODE_CPUS have no node of arm64",
        ),
        (&["node-test", arm64], node),
        (&["demo", arm64, "IMAGE=trixie-arm64"], node),
        (&["check-quick", arm64, "ARCH=amd64"], node),
        (&["deb", HOST, "ARCH=sparc"], "ARCH=sparc: expected amd64 or arm64"),
        (
            &["deb", HOST, "ARCH=amd64 arm64"],
            "ARCH=amd64 arm64: expected amd64 or arm64",
        ),
        (
            &["install", HOST, "ARCH=arm64", "TARGET=x86_64-unknown-linux-gnu"],
            "TARGET=x86_64-unknown-linux-gnu is for amd64, and ARCH=arm64",
        ),
        (
            &["deb", HOST, "TARGET=aarch64-unknown-linux-gnu"],
            "TARGET=aarch64-unknown-linux-gnu is for arm64, and ARCH=amd64",
        ),
    ];
    for (words, expected) in cases {
        let (succeeded, out, said) = make(words);
        assert!(!succeeded && out.is_empty(), "{words:?}: {out}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn an_architecture_may_have_the_machines_name_and_come_from_the_environment() {
    for (given, target, cross) in [
        ("x86_64", "x86_64-unknown-linux-gnu", false),
        ("", "x86_64-unknown-linux-gnu", false),
        ("aarch64", "aarch64-unknown-linux-gnu", true),
        ("arm64", "aarch64-unknown-linux-gnu", true),
    ] {
        let mut make = command("make", &["-n", "install", HOST]);
        make.env("ARCH", given);
        let (succeeded, out, said) = ran(make);
        assert!(succeeded, "{given}: {said}");
        assert!(out.contains(&format!("--target {target}\n")), "{given}: {out}");
        assert_eq!(
            out.contains("packaging/tools/cross-tools arm64\n"),
            cross,
            "{given}: {out}"
        );
    }
}

#[test]
fn the_boot_sectors_are_made_for_amd64_alone() {
    for (image, made) in [("trixie", true), ("trixie-arm64", false)] {
        let (succeeded, out, said) = make(&["node-test", HOST, &format!("IMAGE={image}")]);
        assert!(succeeded, "{image}: {said}");
        assert_eq!(out.contains("elf_i386"), made, "{image}: {out}");
        assert_eq!(out.contains("idle-arm64.bin"), !made, "{image}: {out}");
    }
}

#[test]
fn without_rustc_it_is_said_once_of_what_is_built_and_not_of_help_and_setup() {
    let none = Pretended::new(&[("rustc", "echo 'rustc: not here' >&2; exit 127")]);
    for words in [&["help", "ARCH=sparc"] as &[&str], &["-n", "setup"], &["-n", "clean"]] {
        let (succeeded, out, said) = ran(none.with("make", words));
        assert!(succeeded && said.is_empty() && !out.is_empty(), "{words:?}: {said}");
    }
    for words in [&["-n", "deb"] as &[&str], &["-n", "check"], &["-n", "images"]] {
        let (succeeded, out, said) = ran(none.with("make", words));
        assert!(!succeeded && out.is_empty(), "{words:?}: {out}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("rustc cannot be run (rustc: not here)"), "{said}");
    }
}

#[test]
fn a_check_that_did_not_run_is_in_the_table_with_its_reason() {
    let rustc = "case \"$*\" in *target-libdir*) echo /nonexistent ;; *) echo host: x86_64-unknown-linux-gnu ;; esac";
    let host = Pretended::new(&[
        ("rustc", rustc),
        ("rustup", "echo 'error: no network' >&2; exit 1"),
        // Rust's part is missing, so nothing is installed with apt-get.
        ("apt-get", "echo \"$*\" >> \"$(dirname \"$0\")/calls\""),
    ]);
    let optional = |given: &str| {
        let make = format!("make OPTIONAL={given}");
        ran(host.with("packaging/tools/timed", &[&make, "cross-check", "help"]))
    };
    let (succeeded, table, said) = optional("1");
    assert!(succeeded && said.contains("error: no network"), "{said}");
    let row = "s  cross-check  NOT RUN: rustup could not install the standard library for aarch64-unknown-linux-gnu\n";
    assert!(table.contains(row), "{table}");
    assert!(table.contains("s  help\n"), "{table}");
    let (succeeded, table, _) = optional("");
    assert!(!succeeded && table.contains("s  cross-check  FAILED\n"), "{table}");
    assert!(!Path::new(&host.file("calls")).exists());
}

#[test]
fn nothing_that_is_installed_is_removed_for_the_host_packages() {
    let apt = "echo \"$*\" >> \"$(dirname \"$0\")/calls\"\ncase \"$*\" in *--simulate*) echo 'Remv gcc-multilib [4:12.2.0-3]' ;; esac";
    let host = Pretended::new(&[("apt-get", apt), ("dpkg-query", "exit 1")]);
    let (succeeded, _, said) = ran(host.with("packaging/tools/host-packages", &["gcc-aarch64-linux-gnu"]));
    assert!(!succeeded);
    assert!(said.contains("gcc-aarch64-linux-gnu"), "{said}");
    assert!(said.contains("apt-get would remove: gcc-multilib\n"), "{said}");
    let calls = fs::read_to_string(host.file("calls")).expect("calls");
    let installs: Vec<&str> = calls.lines().filter(|call| call.contains("install")).collect();
    assert!(
        installs.len() == 1 && installs[0].contains("--simulate"),
        "{installs:?}"
    );
}

#[test]
fn the_linker_of_arm64_is_this_hosts_only_if_that_is_arm64() {
    for (machine, expected) in [("aarch64", "cc -static-pie main.o\n"), ("x86_64", "")] {
        let uname = format!("echo {machine}");
        let host = Pretended::new(&[("uname", &uname), ("cc", "echo cc \"$@\"")]);
        let mut linker = command("packaging/tools/arm64-linker", &["-static", "-no-pie", "main.o"]);
        linker.env("PATH", host.0.path());
        let (succeeded, out, said) = ran(linker);
        assert_eq!(out, expected, "{machine}: {said}");
        assert_eq!(succeeded, !expected.is_empty());
        assert_eq!(said.contains("make setup ARCH=arm64"), !succeeded, "{said}");
    }
}

#[test]
fn the_test_node_refuses_a_host_that_is_not_amd64() {
    let host = Pretended::new(&[("uname", "echo aarch64")]);
    for words in [
        &["run", "tests/vm/jobs/hello"] as &[&str],
        &["build", "--image", "trixie"],
        &["probe"],
    ] {
        let (succeeded, _, said) = ran(host.with("tests/vm/node", words));
        assert!(!succeeded, "{words:?}");
        assert_eq!(said, "node: the test node needs an amd64 host: this one is aarch64\n");
    }
    let (succeeded, _, said) = ran(host.with("tests/vm/node", &["help"]));
    assert!(succeeded && said.is_empty(), "{said}");
}

#[test]
fn an_sbom_for_another_machine_does_not_have_this_hosts_c_library() {
    let host = Pretended::new(&[("dpkg-query", "exit 1")]);
    let (machine, debian) = match std::env::consts::ARCH {
        "x86_64" => ("aarch64", "arm64"),
        _ => ("x86_64", "amd64"),
    };
    let target = format!("{machine}-unknown-linux-gnu");
    let out = host.file("sbom.json");
    let mut sbom = host.with(
        "packaging/tools/sbom",
        &["stelia-cluster", "0.1.0", &target, "/nonexistent", &out],
    );
    sbom.env("SOURCE_DATE_EPOCH", "1");
    let (succeeded, _, said) = ran(sbom);
    let expected =
        format!("the version of the C library for {machine} is unknown, because dpkg has no libc6-dev-{debian}-cross");
    assert!(!succeeded && said.contains(&expected), "{said}");
    assert!(!Path::new(&out).exists());
}
