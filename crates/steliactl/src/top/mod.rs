//! `top`: what the vCPU threads do, live.
//!
//! | module | what it is |
//! |---|---|
//! | [`sample`](mod@sample) | what the kernel has counted so far |
//! | [`rates`](mod@rates) | two samples make rates |
//! | [`table`] | rows and columns |
//! | [`screen`] | keys and drawing |
//! | `terminal` | the terminal, and putting it back |

pub mod rates;
pub mod sample;
pub mod screen;
pub mod table;
mod terminal;

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use tokio::signal::unix::SignalKind;

use super::cli::Json;
use super::client::{Client, Failure};
use super::node::Node;
use super::signals::until;
use super::threads::Roots;
use super::view;
use rates::{Model, rates};
use sample::Sample;
use table::number;

/// How it is told.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// JSON instead of tables.
    pub json: Json,
    /// Header lines.
    pub legend: bool,
    /// So many tables; `None`: until interrupted.
    pub count: Option<u32>,
    /// Between two samples.
    pub delay: Duration,
}

/// Shows it: live on a terminal, as tables otherwise.
///
/// # Errors
/// The daemon does not answer the first time, or standard output cannot be written.
pub async fn run(client: &Client<'_>, roots: &Roots, as_batch: bool, how: How) -> Result<String, Failure> {
    if as_batch || how.json.is_on() || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        batch(client, roots, how).await?;
    } else {
        terminal::run(client, roots, how.delay, how.count).await?;
    }
    Ok(String::new())
}

async fn sample(client: &Client<'_>, roots: &Roots, began: Instant) -> Result<Sample, Failure> {
    let node = Node::parse(&client.describe_running().await?)?;
    Ok(Sample::read(&node, roots, began.elapsed()))
}

/// A table with a row an instance (no vCPU) and one a vCPU, every cell filled: for awk.
fn text(model: &Model, time: u64, legend: bool) -> String {
    let header = [
        "POD UID", "VCPU", "STATE", "CPUS", "UTIL%", "DELAY%", "MIGR/S", "INVOL/S", "FLOAT%", "THROT%",
    ];
    let mut rows = Vec::new();
    for instance in &model.instances {
        let counted = |rates: &rates::Rates| {
            [
                number(rates.utilisation_percent),
                number(rates.delay_percent),
                number(rates.migrations_per_second),
                number(rates.involuntary_per_second),
            ]
        };
        let of = |vcpu: &str, cpus: String, rates, own: [Option<f64>; 2]| {
            let mut row = vec![instance.pod.clone(), vcpu.to_owned(), instance.state.clone(), cpus];
            row.extend(counted(rates));
            row.extend(own.map(number));
            row.iter().map(|cell| view::or_dash(cell)).collect::<Vec<_>>()
        };
        let own = [instance.float_percent, instance.throttled_percent];
        rows.push(of("", instance.cpus.to_string(), &instance.rates, own));
        rows.extend(instance.vcpus.iter().map(|vcpu| {
            let cpu = vcpu.cpu.map(|cpu| cpu.to_string()).unwrap_or_default();
            of(&vcpu.name, cpu, &vcpu.rates, [None, None])
        }));
    }
    let table = view::table(&header, rows, legend, None);
    if legend {
        format!("{}\n{table}\n", view::time(time))
    } else {
        table
    }
}

/// Tables, or JSON a sample, until they are enough, it is interrupted, or nobody reads any more.
async fn batch(client: &Client<'_>, roots: &Roots, how: How) -> Result<(), Failure> {
    let began = Instant::now();
    let mut interrupt = until(SignalKind::interrupt())?;
    let mut terminate = until(SignalKind::terminate())?;
    let mut before = sample(client, roots, began).await?;
    let mut printed = 0;
    while how.count.is_none_or(|count| printed < count) {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = tokio::time::sleep(how.delay) => {}
        }
        let now = sample(client, roots, began).await?;
        let model = rates(&before, &now);
        before = now;
        printed += 1;
        let text = if how.json.is_on() {
            view::to_json(how.json, &model)
        } else {
            text(&model, view::now(), how.legend)
        };
        let mut out = io::stdout();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::Other(format!("write: {error}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::table::testing::model;
    use super::*;

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
