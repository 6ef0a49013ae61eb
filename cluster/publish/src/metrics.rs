//! What a publisher does, as OpenMetrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::status::{Part, Status};

/// Name without `_total`, help, value.
type Counter = (&'static str, &'static str, fn(&Status) -> u64);

const COUNTERS: [Counter; 5] = [
    (
        "stelia_publish_requests",
        "Requests to the API server, answered or not",
        |status| status.requests,
    ),
    (
        "stelia_publish_request_failures",
        "Requests to the API server that did not succeed",
        |status| status.failures,
    ),
    (
        "stelia_publish_object_writes",
        "Writes of the NodeResourceTopology that the API server accepted",
        |status| status.object_writes,
    ),
    ("stelia_publish_events", "Events of pods that were posted", |status| {
        status.events_posted
    }),
    (
        "stelia_publish_events_dropped",
        "Events of pods that will not be posted: too many waited, or they were refused",
        |status| status.events_dropped,
    ),
];

/// The content type of [`text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug)]
struct StatusCollector(Status);

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self(status) = self;
        for (name, help, value) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, u64, u64>(&value(status), None)?;
        }
        let help = "1 where something is wrong with this part";
        let mut metric = encoder.encode_descriptor("stelia_publish_problem", help, None, MetricType::Gauge)?;
        for part in Part::ALL {
            let wrong = u32::from(status.problems.contains_key(&part));
            metric.encode_family(&[("part", part.name())])?.encode_gauge(&wrong)?;
        }
        let help = "1 while everything that is to be published stands at the API server";
        let mut metric = encoder.encode_descriptor("stelia_publish_settled", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&u32::from(status.settled))
    }
}

/// All metrics.
///
/// # Errors
/// None known: writing to a string does not fail.
pub fn text(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(StatusCollector(status.clone())));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}
