//! What the runner adds to the VMM's command line.

mod api;
mod qemu;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::vmm::{Dialect, Release, VmmKind};

/// The VMM to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmmCommand {
    pub(crate) kind: VmmKind,
    /// The socket of QMP or of the HTTP API.
    pub(crate) control: PathBuf,
    pub(crate) program: OsString,
    /// The arguments, with those added that the runner needs and that were absent.
    pub(crate) args: Vec<OsString>,
    pub(crate) release: Release,
}

/// The command with the control socket.
pub(crate) fn complete(kind: VmmKind, command: &[OsString], control: &Path) -> Result<VmmCommand, Error> {
    let none = || Error::Usage(format!("no {} is given", kind.name()));
    let (program, given) = command.split_first().ok_or_else(none)?;
    let (args, release) = match Dialect::of(kind) {
        None => qemu::paused(given, control),
        Some(dialect) => (api::with_socket(dialect, given, control)?, Release::Continue),
    };
    Ok(VmmCommand {
        kind,
        control: control.to_owned(),
        program: program.clone(),
        args,
        release,
    })
}
