//! `steliactl export metrics`: what the daemon and the kernel have counted, as text for Prometheus.

pub mod definitions;
mod families;
mod file;
mod ledger;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::shared::daemon::{Client, Failure};
use crate::shared::kernel::Roots;
use crate::shared::kernel::sample::Sample;
use crate::shared::output::{self, OutputOptions};

/// Reads the metrics and prints or writes them. If no daemon answers `stelia_up` is 0; on standard output that is a
/// failure, in a file it is not, because the file reports it.
pub(crate) async fn run(
    client: &Client,
    roots: &Roots,
    textfile: Option<&Path>,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let (families, failure) = match client.describe().await {
        Ok(described) => {
            let sample = Sample::read(&described, roots, Duration::ZERO);
            (families::families(&described, &sample), None)
        }
        Err(failure) => (families::down(), Some(failure)),
    };
    let printed = if output_options.form.is_data() && textfile.is_none() {
        output_options.form.write(&text::to_json(&families))?
    } else {
        text::openmetrics(families).map_err(|cause| Failure::Other(format!("encode: {cause}")))?
    };
    if let Some(path) = textfile {
        let reason = failure.map(|failure| format!("# {}\n", output::printable(&failure.to_string())));
        file::replace(path, &(reason.unwrap_or_default() + &text::classic(&printed)))?;
        if !is_collected(path) {
            // Standard error may be closed.
            let _ = writeln!(
                io::stderr(),
                "steliactl: node-exporter ignores {}: its name must end in .prom",
                output::printable(&path.display().to_string())
            );
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
