//! Metrics as text: OpenMetrics 1.0, and the older format that node-exporter's textfile collector reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use stelia_api::metrics::BOUNDS_US;

use super::definitions::{Family, Value};

#[derive(Debug)]
struct All(Vec<Family>);

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family {
            name,
            kind,
            help,
            samples,
        } in &self.0
        {
            // The encoder appends the unit to the name.
            let (name, unit) = match name.rsplit_once('_') {
                Some((name, unit @ ("seconds" | "bytes"))) => (name, Some(Unit::Other(unit.to_owned()))),
                _ => (*name, None),
            };
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for (labels, value) in samples {
                if labels.is_empty() {
                    encode(&mut metric, *kind, value)?;
                } else {
                    encode(&mut metric.encode_family(labels)?, *kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(metric: &mut MetricEncoder<'_>, kind: MetricType, value: &Value) -> Result<(), fmt::Error> {
    match (value, kind) {
        (Value::Whole(number), MetricType::Counter) => metric.encode_counter::<NoLabelSet, u64, u64>(number, None),
        (Value::Real(number), MetricType::Counter) => metric.encode_counter::<NoLabelSet, f64, u64>(number, None),
        (Value::Whole(number), _) => metric.encode_gauge(number),
        (Value::Real(number), _) => metric.encode_gauge(number),
        (Value::Durations(timed), _) => {
            let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(timed.counts.iter().copied()).collect();
            let count = timed.counts.iter().sum();
            metric.encode_histogram::<NoLabelSet>(timed.sum_us as f64 / 1e6, count, &buckets, None)
        }
    }
}

/// OpenMetrics 1.0.
///
/// # Errors
/// None known: writing to a string does not fail.
pub(super) fn openmetrics(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(families)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// The same in the text format 0.0.4, which node-exporter's textfile collector reads: a counter is declared by the name of its samples, and
/// there are no lines for units and the end.
pub(super) fn classic(openmetrics: &str) -> String {
    let declared = openmetrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: Vec<&str> = declared.filter_map(|line| line.strip_suffix(" counter")).collect();
    let line = |line: &str| match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
        ["#", "EOF"] | ["#", "UNIT", ..] => String::new(),
        ["#", word, name, rest] if counters.contains(&name) => format!("# {word} {name}_total {rest}\n"),
        _ => format!("{line}\n"),
    };
    openmetrics.lines().map(line).collect()
}
