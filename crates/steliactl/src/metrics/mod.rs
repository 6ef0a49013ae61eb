//! `steliactl metrics`: what the daemon tells and the kernel counts, as text for Prometheus.

pub mod definitions;
mod described;
mod families;
mod file;
mod readings;
#[cfg(test)]
mod tests;
mod text;

use std::path::Path;

use super::cli::Json;
use super::client::{Client, Failure};
use super::threads::Roots;
use super::view;
use described::Described;

/// Read, and print or write. That no daemon answers is told by `stelia_up`; in a file it is no failure, because the file is
/// how it is told.
pub(super) async fn run(
    client: &Client<'_>,
    roots: &Roots,
    textfile: Option<&Path>,
    json: Json,
) -> Result<String, Failure> {
    let described = match client.describe_running().await {
        Ok(text) => Described::parse(&text),
        Err(failure) => Err(failure),
    };
    let (families, failure) = match described {
        Ok(described) => {
            let readings = readings::read(roots, &described);
            (families::families(&described, &readings), None)
        }
        Err(failure) => (families::down(), Some(failure)),
    };
    let printed = if json.is_on() && textfile.is_none() {
        view::to_json(json, &text::to_json(&families))
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
