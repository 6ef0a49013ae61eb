//! What the runner adds to the VMM's command line.

mod api;
mod qemu;

use std::ffi::OsString;
use std::path::Path;

use super::error::Error;
use super::vmm::{Dialect, Release, VmmKind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmmCommand {
    pub(crate) program: OsString,
    /// The arguments, with those added that the runner needs and that were absent.
    pub(crate) args: Vec<OsString>,
    pub(crate) release: Release,
}

/// The command with the control socket, which is QMP's or that of the HTTP API.
pub(crate) fn complete(kind: VmmKind, command: &[OsString], control: &Path) -> Result<VmmCommand, Error> {
    let none = || Error::Usage(format!("no {} is given", kind.name()));
    match Dialect::of(kind) {
        None => qemu::qemu_command(command, control).ok_or_else(none),
        Some(dialect) => {
            let (program, given) = command.split_first().ok_or_else(none)?;
            Ok(VmmCommand {
                program: program.clone(),
                args: api::with_socket(dialect, given, control)?,
                release: Release::Continue,
            })
        }
    }
}
