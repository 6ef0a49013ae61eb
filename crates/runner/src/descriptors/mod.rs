//! Descriptors for the VMM: the runner opens them, only the VMM inherits them, and its arguments have their numbers.

mod spec;
mod tap;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::net::UnixStream;

use super::error::Error;
use spec::Source;
pub(crate) use spec::{DescriptorSpec, parse};

/// The beginning of the placeholder `{fd:NAME}` of a descriptor's number.
const PLACEHOLDER_START: &[u8] = b"{fd:";

/// Open descriptors by name. Only the child that is started within [`Descriptors::inherited`] inherits them.
#[derive(Debug, Default)]
pub(crate) struct Descriptors(Vec<(String, OwnedFd)>);

impl Descriptors {
    pub(crate) async fn open(specs: &[DescriptorSpec]) -> Result<Descriptors, Error> {
        let mut opened = Vec::new();
        for spec in specs {
            let descriptor = open(&spec.source).await.map_err(|cause| Error::Descriptor {
                name: spec.name.clone(),
                what: spec.source.to_string(),
                cause,
            })?;
            tracing::info!(
                "descriptor {}: {} is {}",
                descriptor.as_raw_fd(),
                spec.name,
                spec.source
            );
            opened.push((spec.name.clone(), descriptor));
        }
        Ok(Descriptors(opened))
    }

    /// The arguments with numbers in place of the placeholders.
    pub(crate) fn numbered(&self, args: &[OsString]) -> Result<Vec<OsString>, Error> {
        let number = |name: &str| {
            let entry = self.0.iter().find(|(known, _)| known == name);
            entry.map(|(_, descriptor)| descriptor.as_raw_fd().to_string())
        };
        args.iter().map(|arg| replace_placeholders(arg, number)).collect()
    }

    /// Calls `start` while children inherit the descriptors. No other child can be started meanwhile: there is one thread, and `start`
    /// does not wait.
    pub(crate) fn inherited<T>(&self, start: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let set = |flags: FdFlags| {
            let mut all = self.0.iter();
            all.try_for_each(|(_, descriptor)| fcntl_setfd(descriptor, flags))
                .map_err(Error::system("let a descriptor be inherited"))
        };
        let started = set(FdFlags::empty()).and_then(|()| start());
        set(FdFlags::CLOEXEC)?;
        started
    }
}

/// Checks that every name in the arguments is one of these, and that each of these is in the arguments.
pub(crate) fn check(specs: &[DescriptorSpec], args: &[OsString]) -> Result<(), Error> {
    let mut used = Vec::new();
    for arg in args {
        replace_placeholders(arg, |name| {
            let known = specs.iter().any(|spec| spec.name == name);
            known.then(|| used.push(name.to_owned())).map(|()| String::new())
        })?;
    }
    for (at, spec) in specs.iter().enumerate() {
        if specs.iter().take(at).any(|other| other.name == spec.name) {
            return Err(Error::Usage(format!("--fd {}: given twice", spec.name)));
        }
        if !used.contains(&spec.name) {
            return Err(Error::Usage(format!(
                "--fd {0}: no argument has {{fd:{0}}} in it",
                spec.name
            )));
        }
    }
    Ok(())
}

/// An argument with each `{fd:NAME}` replaced. It need not be UTF-8; a name is.
fn replace_placeholders(arg: &OsString, mut number: impl FnMut(&str) -> Option<String>) -> Result<OsString, Error> {
    let mut rest = arg.as_bytes();
    let mut done = Vec::with_capacity(rest.len());
    while let Some(at) = rest
        .windows(PLACEHOLDER_START.len())
        .position(|window| window == PLACEHOLDER_START)
    {
        let (before, from) = rest.split_at(at);
        let inside = from.get(PLACEHOLDER_START.len()..).unwrap_or_default();
        let wrong = |text: &str| Error::Usage(format!("argument {}: {text}", arg.to_string_lossy()));
        let end = inside.iter().position(|byte| *byte == b'}');
        let (name, after) = inside.split_at(end.ok_or_else(|| wrong("{fd: has no } after it"))?);
        let name = String::from_utf8_lossy(name);
        let number = number(&name).ok_or_else(|| wrong(&format!("no --fd {name}=… is given")))?;
        done.extend_from_slice(before);
        done.extend_from_slice(number.as_bytes());
        rest = after.get(1..).unwrap_or_default();
    }
    done.extend_from_slice(rest);
    Ok(OsString::from_vec(done))
}

/// Opens a descriptor with close-on-exec.
async fn open(source: &Source) -> io::Result<OwnedFd> {
    match source {
        Source::File(path) => open_file(path).map(OwnedFd::from),
        Source::Tap(interface) => tap::open(interface),
        Source::Socket(path) => {
            // If the listener's queue is full, this fails instead of waiting.
            let stream = UnixStream::connect(path).await?.into_std()?;
            stream.set_nonblocking(false)?;
            Ok(stream.into())
        }
    }
}

fn open_file(path: &Path) -> io::Result<std::fs::File> {
    // A terminal must not become the runner's controlling terminal.
    let flags = OFlags::NOCTTY.bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let is_socket = || std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match opened {
        Err(_) if is_socket() => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is a socket: say socket:{}", path.display()),
        )),
        opened => opened,
    }
}

#[cfg(test)]
mod tests;
