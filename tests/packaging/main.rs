//! The .rpm held to the Debian package, and the SELinux module asked what it allows. As root; `make package-test` builds what is
//! looked at here and says where it is. No kernel with SELinux is needed, and none is asked: see `docs/packages.md`.

#![allow(clippy::expect_used, clippy::panic)]

mod install;
mod release;
mod rpm;
mod scriptlets;
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
