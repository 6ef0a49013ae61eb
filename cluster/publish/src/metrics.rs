//! What a publisher does, as OpenMetrics.

use std::fmt;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::status::{Part, Status};

/// The content type of [`text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics.
///
/// # Errors
/// None known: writing to a string does not fail.
pub fn text(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("stelia_publish");
    for (name, help, value) in [
        (
            "requests",
            "Requests to the API server, answered or not",
            status.requests,
        ),
        (
            "request_failures",
            "Requests to the API server that did not succeed",
            status.failures,
        ),
        (
            "object_writes",
            "Writes of the NodeResourceTopology that the API server accepted",
            status.object_writes,
        ),
        ("events", "Events of pods that were posted", status.events_posted),
        (
            "events_dropped",
            "Events of pods that will not be posted: too many waited, or they were refused",
            status.events_dropped,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    let problems: Family<[(&str, &str); 1], Gauge> = Family::default();
    for part in Part::ALL {
        let wrong = i64::from(status.problems.contains_key(&part));
        problems.get_or_create(&[("part", part.name())]).set(wrong);
    }
    registry.register("problem", "1 where something is wrong with this part", problems);
    registry.register(
        "settled",
        "1 while everything that is to be published stands at the API server",
        ConstGauge::new(i64::from(status.settled)),
    );
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
