//! Metrics as text: OpenMetrics 1.0, the older format that node-exporter's textfile collector reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use stelia_api::metrics::{BOUNDS_US, DurationHistogram};

use super::definitions::Kind;
use super::samples::{Family, Value};

#[derive(Debug)]
struct All(Vec<Family>);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let definition = family.definition;
            let kind = match definition.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
                Kind::Histogram => MetricType::Histogram,
            };
            let unit = definition.unit().map(|unit| Unit::Other(unit.to_owned()));
            // The encoder appends the unit to the name.
            let name = definition
                .unit()
                .and_then(|unit| definition.name.strip_suffix(unit)?.strip_suffix('_'))
                .unwrap_or(definition.name);
            let mut metric = encoder.encode_descriptor(name, definition.help, unit.as_ref(), kind)?;
            for (values, value) in &family.samples {
                if values.is_empty() {
                    sample(&mut metric, definition.kind, value)?;
                } else {
                    let labels: Vec<(&str, &str)> = definition
                        .labels
                        .iter()
                        .copied()
                        .zip(values.iter().map(String::as_str))
                        .collect();
                    sample(&mut metric.encode_family(&labels)?, definition.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn sample(metric: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), fmt::Error> {
    match (value, kind) {
        (Value::Count(number), Kind::Counter) => metric.encode_counter::<NoLabelSet, u64, u64>(number, None),
        (Value::Real(number), Kind::Counter) => metric.encode_counter::<NoLabelSet, f64, u64>(number, None),
        (Value::Count(number), _) => metric.encode_gauge(number),
        (Value::Real(number), _) => metric.encode_gauge(number),
        (Value::Durations(timed), _) => {
            let count = timed.counts.iter().sum();
            metric.encode_histogram::<NoLabelSet>(timed.sum_us as f64 / 1e6, count, &buckets(timed), None)
        }
    }
}

/// Each bound in seconds with its count.
fn buckets(timed: &DurationHistogram) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(timed.counts.iter().copied()).collect()
}

/// OpenMetrics 1.0.
///
/// # Errors
/// None known: writing to a string does not fail.
pub(crate) fn openmetrics(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(families)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// The same in the text format 0.0.4, which node-exporter's textfile collector reads: a counter is declared by the name
/// of its samples, and there are no lines for units and the end.
pub(crate) fn classic(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        let counter = |line: &str| {
            let name = line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?;
            Some(name.to_owned())
        };
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        // HELP comes right before TYPE.
        if let Some(name) = lines.peek().and_then(|next| counter(next))
            && let Some(help) = line.strip_prefix(&format!("# HELP {name} "))
        {
            out.push_str(&format!("# HELP {name}_total {help}\n"));
        } else if let Some(name) = counter(line) {
            out.push_str(&format!("# TYPE {name}_total counter\n"));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
