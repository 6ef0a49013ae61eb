//! `steliactl export metrics`: what the daemon and the kernel have counted, as text for Prometheus.

mod definitions;
#[cfg(test)]
mod tests;
mod text;

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use stelia_table::PrintError;
use tempfile::NamedTempFile;

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
            (definitions::all(&described, &sample), None)
        }
        Err(failure) => (vec![definitions::up(false)], Some(failure.to_string())),
    };
    let printed = text::openmetrics(families).map_err(|cause| Failure::Other(format!("encode: {cause}")))?;
    match (textfile, failure) {
        (None, None) => Ok(printed),
        (None, Some(reason)) => Err(PrintError { printed, reason }.into()),
        (Some(path), failure) => {
            let reason = failure.map(|failure| format!("# {}\n", output::printable(&failure)));
            let text = reason.unwrap_or_default() + &text::classic(&printed);
            replace(path, &text).map_err(|cause| Failure::Other(format!("write {}: {cause}", path.display())))?;
            Ok(String::new())
        }
    }
}

/// Replaces `path` by `text`: a reader sees the old file or the new one, and a crash leaves one of them.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // In the same directory, because it is renamed; not ending in .prom, which the collector would read.
    let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    // Whatever the umask: the collector runs as another user.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
