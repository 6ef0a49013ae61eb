//! `steliactl export metrics`: what the daemon and the kernel have counted, as text for Prometheus.

pub mod definitions;
mod samples;
#[cfg(test)]
mod tests;
mod text;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::shared::daemon::{Client, Failure};
use crate::shared::kernel::Roots;
use crate::shared::kernel::sample::Sample;
use crate::shared::output;

/// Reads the metrics and prints or writes them. If no daemon answers `stelia_up` is 0; on standard output that is a
/// failure, in a file it is not, because the file reports it.
pub(crate) async fn run(client: &Client, roots: &Roots, textfile: Option<&Path>) -> Result<String, Failure> {
    let (families, failure) = match client.describe().await {
        Ok(described) => {
            let sample = Sample::read(&described, roots, Duration::ZERO);
            (samples::families(&described, &sample), None)
        }
        Err(failure) => (samples::down(), Some(failure)),
    };
    let printed = text::openmetrics(families).map_err(|cause| Failure::Other(format!("encode: {cause}")))?;
    if let Some(path) = textfile {
        let reason = failure.map(|failure| format!("# {}\n", output::printable(&failure.to_string())));
        replace(path, &(reason.unwrap_or_default() + &text::classic(&printed)))?;
        if !is_collected(path) {
            output::note(&format!(
                "node-exporter ignores {}: its name must end in .prom",
                path.display()
            ));
        }
        return Ok(String::new());
    }
    match failure {
        None => Ok(printed),
        Some(failure) => Err(Failure::Partial {
            printed,
            reason: failure.to_string(),
        }),
    }
}

/// Whether node-exporter's textfile collector reads a file of this name.
fn is_collected(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b".prom")
}

/// Replaces `path` by `text`: a reader sees the old file or the new one, and a crash leaves one of them.
///
/// # Errors
/// The directory cannot be written to.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let Some(name) = path.file_name() else {
        return Err(Failure::Usage(format!("{} names no file", path.display())));
    };
    // In the same directory, because it is renamed; not ending in .prom, which the collector would read.
    let temporary = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|cause| {
        // Best effort: the write may have failed before there was a file.
        let _ = fs::remove_file(&temporary);
        Failure::Other(format!("write {}: {cause}", path.display()))
    })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // Whatever the umask: the collector runs as another user.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
