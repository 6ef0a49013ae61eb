//! `top`: what the vCPU threads do, live.

mod history;
mod live_rows;
mod screen;
mod terminal;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use crate::shared::daemon::signals::{self, End};
use crate::shared::daemon::{Client, Failure, Selection};
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::{Model, rates};
use crate::shared::kernel::sample::Sample;
use crate::shared::output::{self, OutputOptions, Render, TextStyle, column};
use live_rows::{OF_CACHES, Row, plain};
use stelia_table::Column;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The number of tables; `None`: until interrupted.
    pub count: Option<u32>,
    /// Between two samples.
    pub delay: Duration,
}

/// Where samples come from.
pub(crate) struct Source<'a> {
    client: &'a Client,
    roots: &'a Roots,
    selection: &'a Selection,
}

impl<'a> Source<'a> {
    /// # Errors
    /// The daemon does not answer, or a pattern fits no instance now.
    pub(crate) async fn of(client: &'a Client, roots: &'a Roots, selection: &'a Selection) -> Result<Self, Failure> {
        if !selection.is_all() {
            selection.restrict(&mut client.describe_running().await?)?;
        }
        Ok(Self {
            client,
            roots,
            selection,
        })
    }

    async fn sample(&self, began: Instant) -> Result<Sample, Failure> {
        let mut described = self.client.describe_running().await?;
        // A VM that was selected may have ended.
        self.selection.retain(&mut described);
        Ok(Sample::read(&described, self.roots, began.elapsed()))
    }
}

/// Whether tables are printed: what is counted stays on the terminal.
fn is_batch(asked: bool, pace: Pace, is_terminal: bool, output_options: OutputOptions) -> bool {
    asked || pace.count.is_some() || !is_terminal || output_options.form.is_data()
}

/// Shows the rates: live on a terminal, as tables otherwise.
///
/// # Errors
/// The first call to the daemon fails, or standard output cannot be written.
pub(crate) async fn run(
    source: &Source<'_>,
    as_batch: bool,
    pace: Pace,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    // A dumb terminal cannot move its cursor.
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_live = !is_dumb && io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_batch(as_batch, pace, is_live, output_options) {
        batch(source, pace, output_options).await?;
    } else {
        terminal::run(source, pace.delay).await?;
    }
    Ok(String::new())
}

/// The columns of plain tables; those of caches only where resctrl counts any of the VMs. On a narrow terminal rates are left out, and
/// then the CPUs.
fn columns<'a>(caches: bool) -> Vec<Column<Row<'a>>> {
    let mut columns = vec![
        column("POD", |row: &Row<'_>| row.instance.pod.to_string())
            .yields(1)
            .shortens(),
        column("VCPU", |row: &Row<'_>| {
            row.vcpu.map(|vcpu| vcpu.name.clone()).unwrap_or_default()
        }),
        column("STATE", |row: &Row<'_>| row.instance.state.clone()),
        plain::<2>().drops(1),
        plain::<3>(),
        plain::<4>(),
        plain::<6>().drops(5),
        plain::<7>().drops(4),
        plain::<8>().drops(3),
        plain::<9>().drops(6),
        plain::<10>().drops(2),
        plain::<11>().drops(7),
        plain::<12>().drops(8),
        // The last column, because it has blanks.
        plain::<13>().wraps().means(Row::meaning),
    ];
    columns.retain(|column| caches || !OF_CACHES.contains(&column.heading()));
    columns
}

/// Their names, for the manual's test.
#[cfg(test)]
pub(crate) fn headings() -> Vec<&'static str> {
    columns(true).iter().map(Column::heading).collect()
}

/// A table with a row per instance (without a vCPU) and a row per vCPU; no cell is empty, for awk.
fn text(model: &Model, time: u64, style: TextStyle) -> String {
    let rows = live_rows::rows(model, None, false, false);
    let table = output::table(&columns(model.has_caches()), &rows, style);
    if style.legend {
        format!("{}\n{table}\n", output::time(time))
    } else {
        table
    }
}

impl Render for Model {
    fn text(&self, style: TextStyle) -> String {
        text(self, output::now(), style)
    }
}

/// Prints tables, or one JSON object per sample, until `count` is reached, it is interrupted, or standard output has no
/// reader.
async fn batch(source: &Source<'_>, pace: Pace, output_options: OutputOptions) -> Result<(), Failure> {
    let began = Instant::now();
    let mut end = End::new()?;
    let mut before = source.sample(began).await?;
    let mut printed = 0;
    while pace.count.is_none_or(|count| printed < count) {
        tokio::select! {
            () = end.reached() => return Ok(()),
            () = tokio::time::sleep(pace.delay) => {}
        }
        let mut now = source.sample(began).await?;
        now.carry_over(&before);
        let model = rates(&before, &now);
        before = now;
        printed += 1;
        let text = output_options.print::<Failure>(&model)?;
        if !signals::print(&(output_options.form.divider().to_owned() + &text))? {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::live_rows::testing::{disturbed, model};
    use super::*;
    use crate::shared::output::Form;
    use crate::tests::fixtures::columns;

    #[test]
    fn a_table_for_pipes_has_every_cell() {
        let text = text(&model(), 951_827_696_000_007, TextStyle::from(true));
        insta::assert_snapshot!(text, @r#"
        2000-02-29T12:34:56.000007Z
        POD                                   VCPU  STATE     CPUS  UTIL%  DELAY%  MIGR/S  INVOL/S  FLOAT%  THROT%  IRQ/S  REASON
        b9e4f71c-64a5-4f8d-8574-41363cbaf8e5  -     floating  2     -      -       -       -        99.0    -       -      degraded: kubelet gave CPU 2 away; floats: its vCPUs are being pinned
        3ceda12c-3ee9-40fa-9f42-61428fe654a6  -     isolated  4-5   140.0  0.5     -       1.0      12.3    0.0     0.0    -
        3ceda12c-3ee9-40fa-9f42-61428fe654a6  0     isolated  4     40.0   0.5     -       1.0      -       -       -      -
        3ceda12c-3ee9-40fa-9f42-61428fe654a6  1     isolated  5     100.0  0.0     -       0.0      -       -       -      -
        "#);
        // The reason is the last: before it each cell is a word.
        let rows = text.lines().skip(2).filter(|line| !line.is_empty());
        let rows: Vec<Vec<&str>> = rows.map(|line| line.split_whitespace().collect()).collect();
        assert!(rows[1..].iter().all(|words| words.len() == 12 && words[11] == "-"));
        assert_eq!(
            rows[0][11..].join(" "),
            "degraded: kubelet gave CPU 2 away; floats: its vCPUs are being pinned"
        );
    }

    #[test]
    fn eighty_columns_have_the_pod_and_the_reason_and_leave_rates_out() {
        let style = columns(80);
        let text = text(&disturbed(), 0, style);
        let headings: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(headings, ["POD", "VCPU", "STATE", "UTIL%", "DELAY%", "REASON"]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let reason = text.lines().nth(1).unwrap().find("REASON").unwrap();
        assert!(80 - reason >= 24, "the reason has room for words: {text}");
        assert!(
            text.contains("-primary"),
            "the end of the name tells pods apart: {text}"
        );
    }

    #[test]
    fn what_is_counted_is_printed_and_not_drawn() {
        let options = OutputOptions {
            form: Form::Text,
            style: TextStyle::default(),
        };
        let pace = |count| Pace {
            count,
            delay: Duration::from_secs(1),
        };
        assert!(!is_batch(false, pace(None), true, options));
        assert!(is_batch(false, pace(Some(1)), true, options));
        assert!(is_batch(true, pace(None), true, options));
        assert!(is_batch(false, pace(None), false, options));
        let json = OutputOptions {
            form: Form::Json,
            ..options
        };
        assert!(is_batch(false, pace(None), true, json));
    }

    #[test]
    fn caches_have_columns_only_where_they_are_counted() {
        let mut model = model();
        let heads = |model: &Model| {
            let text = text(model, 0, TextStyle::from(true));
            text.lines().nth(1).unwrap().contains("LLC-MIB")
        };
        assert!(!heads(&model));
        model.instances[0].llc_bytes = Some(3 << 19);
        assert!(heads(&model));
        let text = text(&model, 0, TextStyle::from(true));
        let row: Vec<&str> = text.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(row[10..], ["0.0", "1.5", "-", "-"]);
    }

    #[test]
    fn json_is_one_object_a_sample() {
        let json = Form::JsonLine.write(&model()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert_eq!(value["instances"][0]["vcpus"][1]["utilisation_ratio"], 1.0);
        assert_eq!(value["instances"][1]["utilisation_ratio"], serde_json::Value::Null);
        assert_eq!(value["instances"][0]["reason"], serde_json::Value::Null);
        assert_eq!(value["instances"][0]["vcpus"][1]["reason"], serde_json::Value::Null);
        let reason = value["instances"][1]["reason"].as_str().unwrap();
        assert!(reason.starts_with("degraded: "), "{reason}");
    }
}
