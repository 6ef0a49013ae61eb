//! `steliactl metrics`: what the daemon tells and the kernel counts, as text for Prometheus.

pub mod definitions;
mod families;
mod file;
#[cfg(test)]
mod tests;
mod text;

use std::path::Path;
use std::time::Duration;

use super::client::{Client, Failure};
use super::sample::Sample;
use super::threads::Roots;
use super::view::{self, How};

/// Read, and print or write. That no daemon answers is told by `stelia_up`; in a file it is no failure, because the file is
/// how it is told.
pub(super) async fn run(client: &Client, roots: &Roots, textfile: Option<&Path>, how: How) -> Result<String, Failure> {
    let (families, failure) = match client.describe_running().await {
        Ok(described) => {
            let sample = Sample::read(&described, roots, Duration::ZERO);
            (families::families(&described, &sample), None)
        }
        Err(failure) => (families::down(), Some(failure)),
    };
    let printed = if how.json.is_on() && textfile.is_none() {
        view::to_json(how.json, &text::to_json(&families))
    } else {
        text::openmetrics(families).map_err(|cause| Failure::Other(format!("encode: {cause}")))?
    };
    if let Some(path) = textfile {
        let reason = failure.map(|failure| format!("# {}\n", view::printable(&failure.to_string())));
        file::replace(path, &(reason.unwrap_or_default() + &text::classic(&printed)))?;
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
