//! `top`: what the vCPU threads do, live.

mod screen;
mod terminal;

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use crate::shared::daemon::signals::{self, End};
use crate::shared::daemon::{Client, Failure, Selection};
use crate::shared::kernel::rates::{InstanceRates, Model, Rates, VcpuRates, rates};
use crate::shared::kernel::sample::Sample;
use crate::shared::kernel::{Roots, host_name};
use crate::shared::output::{self, Column, Meaning, OutputOptions, Render, TextStyle, column};

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
    host: String,
}

impl<'a> Source<'a> {
    /// # Errors
    /// The daemon does not answer, or a pattern fits no VM now.
    pub(crate) async fn of(client: &'a Client, roots: &'a Roots, selection: &'a Selection) -> Result<Self, Failure> {
        if !selection.is_all() {
            selection.restrict(&mut client.describe().await?)?;
        }
        Ok(Self {
            client,
            roots,
            selection,
            host: host_name(&roots.proc),
        })
    }

    async fn sample(&self, began: Instant) -> Result<Sample, Failure> {
        let mut described = self.client.describe().await?;
        // A VM that was selected may have ended.
        self.selection.retain(&mut described);
        Ok(Sample::read(&described, self.roots, began.elapsed()))
    }
}

/// Shows the rates: live on a terminal, as tables otherwise.
///
/// # Errors
/// The first call to the daemon fails, or standard output cannot be written.
pub(crate) async fn run(
    source: &Source<'_>,
    is_live: bool,
    pace: Pace,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    if is_live {
        terminal::run(source, pace.delay, output_options.style).await?;
    } else {
        batch(source, pace, output_options).await?;
    }
    Ok(String::new())
}

/// A row: a VM, or one of its vCPUs below it.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    vm: &'a InstanceRates,
    vcpu: Option<&'a VcpuRates>,
}

impl Row<'_> {
    fn name(&self) -> String {
        self.vcpu
            .map_or_else(|| self.vm.pod.to_string(), |vcpu| format!("  vcpu {}", vcpu.name))
    }

    fn cpus(&self) -> String {
        let of_vcpu = |vcpu: &VcpuRates| vcpu.cpu.map(|cpu| cpu.to_string()).unwrap_or_default();
        self.vcpu.map_or_else(|| self.vm.cpus.to_string(), of_vcpu)
    }

    fn note(&self) -> String {
        self.vcpu.map_or(&self.vm.note, |vcpu| &vcpu.note).clone()
    }

    /// What disturbs it, in words; empty where nothing does.
    fn reason(&self) -> &str {
        let of_vm = || self.vm.reason.as_deref().unwrap_or_default();
        self.vcpu.map_or_else(of_vm, |vcpu| &vcpu.note)
    }

    /// A rate of the VM or the vCPU.
    fn rate(&self, of: fn(&Rates) -> Option<f64>, digits: usize) -> String {
        number(of(self.vcpu.map_or(&self.vm.rates, |vcpu| &vcpu.rates)), digits)
    }

    /// A value of the VM, which a vCPU does not have.
    fn of_vm(&self, of: fn(&InstanceRates) -> Option<f64>, digits: usize) -> String {
        number(of(self.vm).filter(|_| self.vcpu.is_none()), digits)
    }

    fn meaning(&self) -> Meaning {
        match self.vm.condition.meaning() {
            Meaning::Good | Meaning::Plain if self.note().is_empty() => Meaning::Plain,
            Meaning::Good | Meaning::Plain => Meaning::Attention,
            worse => worse,
        }
    }
}

const MIB: f64 = 1024.0 * 1024.0;

fn number(value: Option<f64>, digits: usize) -> String {
    value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
}

/// The columns; that of caches only where resctrl counts any of the VMs.
fn columns<'a>(caches: bool) -> Vec<Column<Row<'a>>> {
    let number = |heading, cell: fn(&Row<'a>) -> String| column(heading, cell).right();
    let state = |row: &Row<'a>| row.vcpu.map_or(row.vm.condition.name(), |_| "").to_owned();
    let all = [
        column("VM", |row: &Row<'a>| row.name()).yields(2).shortens(),
        column("STATE", state).means(|row| row.vm.condition.meaning()),
        column("CPUS", |row: &Row<'a>| row.cpus()).yields(1),
        number("UTIL%", |row| row.rate(|rates| rates.utilisation_percent, 0)),
        number("WAIT%", |row| row.rate(|rates| rates.delay_percent, 1)),
        number("IRQ/S", |row| row.of_vm(|vm| vm.device_interrupts_per_second, 0)),
        number("FLOAT%", |row| row.of_vm(|vm| vm.float_percent, 0)).wide(),
        number("THROT%", |row| row.of_vm(|vm| vm.throttled_percent, 1)).wide(),
        number("MIGR/S", |row| row.rate(|rates| rates.migrations_per_second, 1)).wide(),
        number("PREEMPT/S", |row| row.rate(|rates| rates.involuntary_per_second, 1)).wide(),
        number("LLC-MIB", |row| {
            row.of_vm(|vm| vm.llc_bytes.map(|bytes| bytes as f64 / MIB), 1)
        })
        .wide(),
        column("NOTE", |row: &Row<'a>| row.note()).or_nothing(),
    ];
    all.into_iter()
        .filter(|column| caches || column.heading() != "LLC-MIB")
        .collect()
}

/// By what rows are sorted: trouble, or the columns of these names.
const SORTS: [&str; 5] = ["trouble", "UTIL%", "WAIT%", "IRQ/S", "VM"];

fn order(a: &InstanceRates, b: &InstanceRates, sort: &str) -> Ordering {
    // The unknown is last.
    let most = |value: fn(&InstanceRates) -> Option<f64>| {
        let of = |vm: &InstanceRates| value(vm).unwrap_or(f64::NEG_INFINITY);
        of(b).total_cmp(&of(a))
    };
    let first = match sort {
        "UTIL%" => most(|vm| vm.rates.utilisation_percent),
        "WAIT%" => most(|vm| vm.rates.delay_percent),
        "IRQ/S" => most(|vm| vm.device_interrupts_per_second),
        "VM" => Ordering::Equal,
        _ => (a.condition, a.note.is_empty()).cmp(&(b.condition, b.note.is_empty())),
    };
    let name = |vm: &InstanceRates| (vm.pod.to_string(), vm.pod.pod_uid.clone());
    first.then_with(|| name(a).cmp(&name(b)))
}

/// The VMs in this order, each with its vCPUs below it where it is open.
fn rows<'a>(model: &'a Model, sort: &str, is_open: impl Fn(&InstanceRates) -> bool) -> Vec<Row<'a>> {
    let mut vms: Vec<&InstanceRates> = model.instances.iter().collect();
    vms.sort_by(|a, b| order(a, b, sort));
    let mut rows = Vec::new();
    for vm in vms {
        rows.push(Row { vm, vcpu: None });
        let vcpus = vm.vcpus.iter().filter(|_| is_open(vm));
        rows.extend(vcpus.map(|vcpu| Row { vm, vcpu: Some(vcpu) }));
    }
    rows
}

impl Render for Model {
    /// A table of the VMs, with `-o wide` of their vCPUs too.
    fn text(&self, style: TextStyle) -> String {
        let rows = rows(self, SORTS[0], |_| style.wide);
        let table = output::table(&columns(self.has_caches()), &rows, style);
        if !style.legend {
            return table;
        }
        let problems = super::list::node_lines(&self.problems, style);
        format!("{}\n{problems}{table}\n", output::time(output::now()))
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
        let now = source.sample(began).await?;
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
pub(super) mod testing {
    use stelia_api::{Reason, ReasonCode};

    use super::*;
    use crate::shared::daemon::Condition;
    use crate::tests::fixtures::pod;

    fn rates(utilisation: f64, delay: f64) -> Rates {
        Rates {
            utilisation_percent: Some(utilisation),
            delay_percent: Some(delay),
            involuntary_per_second: Some(delay * 2.0),
            ..Rates::default()
        }
    }

    /// A busy VM with two vCPUs, one of which waits, a calm one, one that waits for vCPUs and a degraded one, on a node with a problem.
    pub(super) fn model() -> Model {
        let vm = |uid: &str, name: &str, condition: Condition, note: &str| InstanceRates {
            pod: pod(uid, name),
            state: condition.to_string(),
            condition,
            in_trouble: condition < Condition::Pinned,
            cpus: "4-5".parse().unwrap(),
            note: note.to_owned(),
            reason: Some(note.to_owned()).filter(|note| !note.is_empty()),
            ..InstanceRates::default()
        };
        let vcpu = |name: &str, cpu: u32, rates: Rates, note: &str| VcpuRates {
            name: name.to_owned(),
            cpu: Some(cpu),
            rates,
            note: note.to_owned(),
            ..VcpuRates::default()
        };
        let busy = InstanceRates {
            device_interrupts_per_second: Some(31.0),
            float_percent: Some(12.3),
            rates: rates(140.0, 4.2),
            vcpus: vec![
                vcpu("0", 4, rates(40.0, 0.0), ""),
                vcpu("1", 5, rates(100.0, 4.2), "waits 4 %"),
            ],
            ..vm("aaaa", "shop/web-18", Condition::Isolated, "waits 4 %")
        };
        Model {
            seconds: 1.0,
            problems: vec![Reason::of_node(
                ReasonCode::KubeletUnusable,
                "kubelet's CPU file is damaged",
            )],
            instances: vec![
                vm("bbbb", "shop/web-2", Condition::Isolated, ""),
                busy,
                vm("cccc", "payments-prod/database-199", Condition::Waiting, "no vCPUs yet"),
                vm("dddd", "team-b/database-1", Condition::Degraded, "cpuset changed"),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::model;
    use super::*;
    use crate::shared::output::Form;
    use crate::shared::output::manual::explained;
    use crate::tests::fixtures::{columns, headings};

    #[test]
    fn every_column_is_explained() {
        let all = headings(&super::columns(true));
        assert_eq!(explained("COLUMNS", Some("top")), all);
        // That of caches only where they are counted.
        assert_eq!(super::columns(false).len() + 1, all.len());
    }

    #[test]
    fn a_table_for_pipes_has_trouble_first_and_no_vcpus() {
        let text = model().text(TextStyle::from(true));
        insta::assert_snapshot!(text.split_once('\n').unwrap().1, @r"
        NODE  cpu_manager_state is unusable: no new VMs; running VMs keep their CPUs
        VM                          STATE     CPUS  UTIL%  WAIT%  IRQ/S  NOTE
        team-b/database-1           degraded  4-5       -      -      -  cpuset changed
        payments-prod/database-199  waiting   4-5       -      -      -  no vCPUs yet
        shop/web-18                 isolated  4-5     140    4.2     31  waits 4 %
        shop/web-2                  isolated  4-5       -      -      -
        ");
        let wide = TextStyle {
            wide: true,
            ..TextStyle::from(false)
        };
        let wide = model().text(wide);
        assert!(wide.lines().any(|line| line.starts_with("  vcpu 1 ")), "{wide}");
    }

    #[test]
    fn eighty_columns_are_not_exceeded_and_the_end_of_a_name_stays() {
        let mut model = model();
        model.instances[0].pod.pod_name = format!("virt-launcher-{}-003-4hvbp", "customer-database".repeat(3));
        let text = model.text(columns(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("-003-4hvbp "), "{text}");
    }

    #[test]
    fn rows_are_sorted_by_trouble_or_by_a_rate_with_the_unknown_last() {
        let model = model();
        let names = |sort| -> Vec<&str> {
            let rows = rows(&model, sort, |_| false).into_iter();
            rows.map(|row| row.vm.pod.pod_uid.as_str()).collect()
        };
        assert_eq!(names("trouble"), ["dddd", "cccc", "aaaa", "bbbb"]);
        assert_eq!(names("UTIL%"), ["aaaa", "cccc", "bbbb", "dddd"]);
        assert_eq!(names("VM"), ["cccc", "aaaa", "bbbb", "dddd"]);
    }

    #[test]
    fn json_is_one_object_a_sample() {
        let json = Form::JsonLine.write(&model()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert_eq!(value["instances"][1]["vcpus"][1]["utilisation_ratio"], 1.0);
        assert_eq!(value["instances"][0]["reason"], serde_json::Value::Null);
        assert_eq!(value["instances"][3]["degraded"], true);
        assert_eq!(value["problems"][0]["code"], "kubelet-unusable");
    }
}
