//! The .rpms held to the Debian packages, and the SELinux module asked what it allows. As root; `make package-test` builds what is
//! looked at here and says where it is. No kernel with SELinux is needed, and none is asked: see `docs/packages.md`.

#![allow(clippy::expect_used, clippy::panic)]

mod cluster;
mod install;
mod make;
mod release;
mod root;
mod rpm;
mod scriptlets;
mod scripts;
mod selinux;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A path that `make package-test` gave.
fn given(variable: &str) -> PathBuf {
    let path = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: make package-test"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    assert!(path.exists(), "{variable}={} does not exist", path.display());
    path
}

/// The package in the folder that `variable` names; there is one.
fn package(variable: &str, start: &str, ending: &str) -> PathBuf {
    let folder = given(variable);
    let files = std::fs::read_dir(&folder)
        .expect("a folder")
        .flatten()
        .map(|file| file.path());
    let is_it = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let version = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(ending));
        version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    };
    let found: Vec<PathBuf> = files.filter(is_it).collect();
    assert!(found.len() == 1, "{start}*{ending} in {}: {found:?}", folder.display());
    found[0].clone()
}

fn deb(name: &str) -> PathBuf {
    package("STELIA_DEBS", &format!("{name}_"), ".deb")
}

fn rpm(name: &str) -> PathBuf {
    package("STELIA_RPMS", &format!("{name}-"), ".rpm")
}

/// Every package that is built.
const PACKAGES: [&str; 4] = ["steliad", "stelia-publish", "stelia-cluster", "stelia-placement"];

/// The folder of a package's programs, as they were built.
fn built(package: &str) -> PathBuf {
    given(match package {
        "steliad" => "STELIA_BIN",
        _ => "STELIA_CLUSTER_BIN",
    })
}

/// The triple that the programs were built for, which is the name of the folder above those of the profiles.
fn target() -> String {
    let programs = built("steliad");
    let target = programs.parent().and_then(Path::file_name).expect("a target");
    target.to_str().expect("UTF-8").to_owned()
}

/// The architecture of that triple: as rustc and rpm name it, and as Debian and OCI do.
fn architecture() -> (String, &'static str) {
    let target = target();
    let (machine, _) = target.split_once('-').expect("a triple");
    let debian = match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        _ => panic!("{machine} is not known here"),
    };
    (machine.to_owned(), debian)
}

/// What the command printed; it must succeed and complain of nothing.
fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", command[0]));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && err.is_empty(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out.into_owned()
}

/// The path as the text that commands take.
fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
