//! `cluster`: the same word for a cluster. The program comes in a package of its own, because it talks to the API server and this one
//! is installed on nodes.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::shared::daemon::Failure;

/// From PATH, else beside the daemon's programs.
const PROGRAMS: [&str; 2] = ["stelia-cluster", "/usr/libexec/stelia/stelia-cluster"];

/// Replaces this program by the other one, whose exit code is then this one's.
pub(crate) fn run(arguments: &[OsString]) -> Failure {
    for program in PROGRAMS {
        let cause = Command::new(program).args(arguments).exec();
        if cause.kind() != ErrorKind::NotFound {
            return Failure::Other(format!("run {program}: {cause}"));
        }
    }
    Failure::Other("stelia-cluster is not installed: it is in the package stelia-cluster".to_owned())
}
