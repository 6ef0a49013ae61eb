//! `top`: what the vCPU threads do, live.
//!
//! | module | what it is |
//! |---|---|
//! | [`rates`](mod@rates) | rates from two samples |
//! | [`table`] | rows and columns |
//! | [`screen`] | keys and drawing |
//! | `terminal` | the terminal, and restoring it |

mod rates;
mod screen;
mod table;
mod terminal;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use tokio::signal::unix::SignalKind;

use super::client::{Client, Failure};
use super::sample::Sample;
use super::signals::{self, until};
use super::threads::Roots;
use super::view::{self, How, Render, column};
use rates::{InstanceRates, Model, Rates, VcpuRates, rates};
use table::number;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// `None`: until interrupted.
    pub count: Option<u32>,
    /// Between two samples.
    pub delay: Duration,
}

/// Shows the rates: live on a terminal, as tables otherwise.
///
/// # Errors
/// The first call to the daemon fails, or standard output cannot be written.
pub(crate) async fn run(
    client: &Client,
    roots: &Roots,
    as_batch: bool,
    pace: Pace,
    how: How,
) -> Result<String, Failure> {
    if as_batch || how.json.is_on() || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        batch(client, roots, pace, how).await?;
    } else {
        terminal::run(client, roots, pace).await?;
    }
    Ok(String::new())
}

async fn sample(client: &Client, roots: &Roots, began: Instant) -> Result<Sample, Failure> {
    Ok(Sample::read(&client.describe_running().await?, roots, began.elapsed()))
}

/// A table with a row per instance (without a vCPU) and a row per vCPU; no cell is empty, for awk.
fn text(model: &Model, time: u64, legend: bool) -> String {
    type Row<'a> = (&'a InstanceRates, Option<&'a VcpuRates>);
    let columns = [
        column("POD UID", |(instance, _): &Row<'_>| instance.pod.clone()),
        column("VCPU", |(_, vcpu)| {
            vcpu.map(|vcpu| vcpu.name.clone()).unwrap_or_default()
        }),
        column("STATE", |(instance, _)| instance.state.clone()),
        column("CPUS", |(instance, vcpu)| match vcpu {
            Some(vcpu) => vcpu.cpu.map(|cpu| cpu.to_string()).unwrap_or_default(),
            None => instance.cpus.to_string(),
        }),
        column("UTIL%", |row| number(counted(row).utilisation_percent)),
        column("DELAY%", |row| number(counted(row).delay_percent)),
        column("MIGR/S", |row| number(counted(row).migrations_per_second)),
        column("INVOL/S", |row| number(counted(row).involuntary_per_second)),
        column("FLOAT%", |(instance, vcpu)| {
            number(instance.float_percent.filter(|_| vcpu.is_none()))
        }),
        column("THROT%", |(instance, vcpu)| {
            number(instance.throttled_percent.filter(|_| vcpu.is_none()))
        }),
    ];
    fn counted<'a>((instance, vcpu): &Row<'a>) -> &'a Rates {
        vcpu.map_or(&instance.rates, |vcpu| &vcpu.rates)
    }
    let rows = model.instances.iter().flat_map(|instance| {
        let vcpus = instance.vcpus.iter().map(move |vcpu| (instance, Some(vcpu)));
        std::iter::once((instance, None)).chain(vcpus)
    });
    let table = view::list(&columns, &rows.collect::<Vec<_>>(), legend);
    if legend {
        format!("{}\n{table}\n", view::time(time))
    } else {
        table
    }
}

impl Render for Model {
    fn text(&self, legend: bool) -> String {
        text(self, view::now(), legend)
    }
}

/// Prints tables, or one JSON object per sample, until `count` is reached, it is interrupted, or standard output has no
/// reader.
async fn batch(client: &Client, roots: &Roots, pace: Pace, how: How) -> Result<(), Failure> {
    let began = Instant::now();
    let mut interrupt = until(SignalKind::interrupt())?;
    let mut terminate = until(SignalKind::terminate())?;
    let mut before = sample(client, roots, began).await?;
    let mut printed = 0;
    while pace.count.is_none_or(|count| printed < count) {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = tokio::time::sleep(pace.delay) => {}
        }
        let now = sample(client, roots, began).await?;
        let model = rates(&before, &now);
        before = now;
        printed += 1;
        if !signals::print(&how.print(&model)?)? {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::table::testing::model;
    use super::*;
    use crate::cli::Json;

    #[test]
    fn a_table_for_pipes_has_every_cell() {
        let text = text(&model(), 951_827_696_000_007, true);
        insta::assert_snapshot!(text, @r#"
        2000-02-29T12:34:56.000007Z
        POD UID                               VCPU  STATE     CPUS  UTIL%  DELAY%  MIGR/S  INVOL/S  FLOAT%  THROT%
        3ceda12c-3ee9-40fa-9f42-61428fe654a6  -     isolated  4-5   140.0  0.5     -       1.0      12.3    0.0
        3ceda12c-3ee9-40fa-9f42-61428fe654a6  0     isolated  4     40.0   0.5     -       1.0      -       -
        3ceda12c-3ee9-40fa-9f42-61428fe654a6  1     isolated  5     100.0  0.0     -       0.0      -       -
        b9e4f71c-64a5-4f8d-8574-41363cbaf8e5  -     floating  2     -      -       -       -        99.0    -
        "#);
        let words = text.lines().skip(2).filter(|line| !line.is_empty());
        assert!(
            words
                .map(|line| line.split_whitespace().count())
                .all(|count| count == 10)
        );
    }

    #[test]
    fn json_is_one_object_a_sample() {
        let json = view::to_json(Json::Short, &model());
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert_eq!(value["Instances"][0]["VCPUs"][1]["UtilisationPercent"], 100.0);
        assert_eq!(value["Instances"][1]["UtilisationPercent"], serde_json::Value::Null);
    }
}
