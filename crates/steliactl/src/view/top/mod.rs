//! `top`: what the vCPU threads do, live.

mod screen;
mod terminal;

use std::cmp::Ordering;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};

pub(crate) use self::terminal::live;
use crate::shared::daemon::signals::{self, End};
use crate::shared::daemon::{
    Client, Description, Failure, Selected, Selection, counts, former_in_words, is_in_trouble, own_cpus,
};
use crate::shared::kernel::Roots;
use crate::shared::kernel::rates::{InstanceRates, Model, Rates, VcpuRates, rates};
use crate::shared::kernel::sample::Sample;
use crate::shared::located::clock;
use crate::shared::output::{self, Column, Meaning, OutputOptions, Render, TextStyle, column, natural};

/// Where samples come from.
pub(crate) struct Source<'a> {
    client: &'a Client,
    roots: &'a Roots,
    selection: &'a Selection,
    /// Between two samples.
    delay: Duration,
    began: Instant,
    before: Sample,
}

impl<'a> Source<'a> {
    /// With the first sample, and what that says.
    pub(crate) fn of(client: &'a Client, roots: &'a Roots, selected: &'a Selected, delay: Duration) -> (Self, Model) {
        let mut source = Self {
            client,
            roots,
            selection: &selected.selection,
            delay,
            began: Instant::now(),
            before: Sample::default(),
        };
        let model = source.sample(selected.described.clone());
        (source, model)
    }

    /// The rates since the sample before.
    fn sample(&mut self, mut described: Description) -> Model {
        let former = former_in_words(&described, &self.selection.former(&described));
        // A VM that was selected may have ended.
        self.selection.retain(&mut described);
        let now = Sample::read(&described, self.roots, self.began.elapsed());
        let mut model = rates(&self.before, &now);
        self.before = now;
        model.former = former;
        model
    }

    /// The rates since the sample before, after the delay; a failed one changes nothing.
    async fn rates(&mut self) -> Result<Model, Failure> {
        tokio::time::sleep(self.delay).await;
        let described = self.client.describe().await?;
        Ok(self.sample(described))
    }

    /// The rates again and again, without an end. Waiting for the next ones may be given up and taken up again.
    fn models(self) -> impl Stream<Item = Result<Model, Failure>> {
        stream::unfold(self, |mut source| async { Some((source.rates().await, source)) })
    }
}

/// A row: a VM, or one of its vCPUs below it.
#[derive(Debug, Clone)]
struct Row<'a> {
    vm: &'a InstanceRates,
    vcpu: Option<&'a VcpuRates>,
}

impl<'a> Row<'a> {
    fn name(&self) -> String {
        let of_vcpu = self.vcpu.map(|vcpu| format!("  vcpu {}", vcpu.name));
        of_vcpu.unwrap_or_else(|| self.vm.pod.to_string())
    }

    fn cpus(&self) -> String {
        let of_vcpu = self.vcpu.map(|vcpu| vcpu.cpu.map(|cpu| cpu.to_string()));
        of_vcpu.map_or_else(|| own_cpus(&self.vm.instance).to_string(), Option::unwrap_or_default)
    }

    fn rates(&self) -> &'a Rates {
        self.vcpu.map_or(&self.vm.rates, |vcpu| &vcpu.rates)
    }

    fn note(&self) -> &'a str {
        self.vcpu.map_or(&self.vm.note, |vcpu| &vcpu.note)
    }

    /// What disturbs it, in words; empty where nothing does.
    fn reason(&self) -> &'a str {
        let of_vm = self.vm.reason.as_deref().unwrap_or_default();
        self.vcpu.map_or(of_vm, |vcpu| &vcpu.note)
    }

    /// A value of the VM, which a vCPU does not have.
    fn of_vm(&self, value: Option<f64>, digits: usize) -> String {
        number(value.filter(|_| self.vcpu.is_none()), digits)
    }

    fn meaning(&self) -> Meaning {
        match self.vm.condition().meaning() {
            Meaning::Good | Meaning::Plain if self.note().is_empty() => Meaning::Plain,
            Meaning::Good | Meaning::Plain => Meaning::Attention,
            worse => worse,
        }
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
}

fn columns<'a>() -> [Column<Row<'a>>; 11] {
    let right = |heading, cell: fn(&Row<'a>) -> String| column(heading, cell).right();
    [
        column("VM", |row: &Row<'a>| row.name()).yields(2).shortens(),
        column("STATE", |row: &Row<'a>| {
            let of_vm = row.vcpu.is_none().then(|| row.vm.condition().to_string());
            of_vm.unwrap_or_default()
        })
        .means(|row| row.vm.condition().meaning()),
        column("CPUS", |row: &Row<'a>| row.cpus()).yields(1),
        right("UTIL%", |row| number(row.rates().utilisation_percent, 0)),
        right("WAIT%", |row| number(row.rates().delay_percent, 1)),
        right("IRQ/S", |row| row.of_vm(row.vm.device_interrupts_per_second, 0)),
        right("OTHER%", |row| row.of_vm(row.vm.float_percent, 0)).wide(),
        right("THROT%", |row| row.of_vm(row.vm.throttled_percent, 1)).wide(),
        right("MIGR/S", |row| number(row.rates().migrations_per_second, 1)).wide(),
        right("PREEMPT/S", |row| number(row.rates().involuntary_per_second, 1)).wide(),
        // All of the selected row's is below the table.
        column("NOTE", |row: &Row<'a>| row.note().to_owned())
            .yields(3)
            .at_least(18)
            .or_nothing(),
    ]
}

/// By what rows are sorted: trouble, or the columns of these names.
const SORTS: [&str; 5] = ["trouble", "UTIL%", "WAIT%", "IRQ/S", "VM"];

fn order(a: &InstanceRates, b: &InstanceRates, sort: &str) -> Ordering {
    // A VM that something disturbs is before those of any state that nothing does.
    let trouble = |vm: &InstanceRates| (!is_in_trouble(&vm.instance) && vm.note.is_empty(), vm.condition());
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
        _ => trouble(a).cmp(&trouble(b)),
    };
    let name = |vm: &InstanceRates| (natural(&vm.pod.to_string()), vm.pod.to_string(), vm.pod.pod_uid.clone());
    first.then_with(|| name(a).cmp(&name(b)))
}

/// The VMs in this order, each with its vCPUs below it where it is open.
fn rows<'a>(model: &'a Model, sort: &str, is_open: impl Fn(&InstanceRates) -> bool) -> Vec<Row<'a>> {
    let mut vms: Vec<&InstanceRates> = model.instances.iter().collect();
    vms.sort_by(|a, b| order(a, b, sort));
    let mut rows = Vec::new();
    for vm in vms {
        let vcpus = vm.vcpus.iter().filter(|_| is_open(vm)).map(Some);
        rows.extend(std::iter::once(None).chain(vcpus).map(|vcpu| Row { vm, vcpu }));
    }
    rows
}

impl Render for Model {
    /// A table of the VMs, with `-o wide` of their vCPUs too.
    fn text(&self, style: TextStyle) -> String {
        let rows = rows(self, SORTS[0], |_| style.wide);
        let table = output::table(&columns(), &rows, style);
        if !style.legend {
            return table;
        }
        let problems = super::list::node_lines(&self.problems, style);
        let former = self
            .former
            .iter()
            .map(|words| output::paragraph(&output::printable(words), style));
        let former: String = former.collect();
        let heading = output::paragraph(&heading(self, &format!("{} UTC", clock(output::now()))), style);
        format!("{heading}{problems}{table}{former}\n")
    }
}

/// When it was, how the VMs are, and what their vCPUs use together.
fn heading(model: &Model, clock: &str) -> String {
    let vms = model.instances.iter();
    let used = vms.clone().filter_map(|vm| vm.rates.utilisation_percent);
    // The sum of no floats is -0.0.
    let used = used.fold(0.0, |all, one| all + one) / 100.0;
    format!(
        "{clock}  {}; vCPUs use {used:.1} CPUs",
        counts(vms.map(InstanceRates::condition))
    )
}

/// Prints tables, or one JSON object per sample, until there were `count`, it is interrupted, or standard output has no reader.
pub(crate) async fn batch(source: Source<'_>, count: Option<u32>, options: OutputOptions) -> Result<String, Failure> {
    let mut end = End::new()?;
    let mut models = pin!(source.models());
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        let model = tokio::select! {
            () = end.reached() => break,
            Some(model) = models.next() => model?,
        };
        printed += 1;
        let text = options.print::<Failure>(&model)?;
        if !signals::print(&text)? {
            break;
        }
    }
    Ok(String::new())
}

#[cfg(test)]
pub(super) mod testing {
    use std::sync::Arc;

    use stelia_api::{Reason, ReasonCode, State};
    use stelia_model::Instance;

    use super::*;
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
        let vm = |uid: &str, name: &str, state: State, note: &str| {
            let problem = |note: &&str| {
                note.starts_with("cpuset")
                    .then(|| Reason::of_node(ReasonCode::CpusetChanged, "x"))
            };
            let instance = Instance {
                state,
                degraded: problem(&note).into_iter().collect(),
                exclusive: "4-5".parse().unwrap(),
                ..Instance::default()
            };
            InstanceRates {
                pod: pod(uid, name),
                instance: Arc::new(instance),
                note: note.to_owned(),
                reason: Some(note.to_owned()).filter(|note| !note.is_empty()),
                ..InstanceRates::default()
            }
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
            ..vm("aaaa", "shop/web-18", State::Isolated, "waits 4 %")
        };
        Model {
            seconds: 1.0,
            problems: vec![Reason::of_node(
                ReasonCode::KubeletUnusable,
                "kubelet's CPU file is damaged",
            )],
            former: None,
            instances: vec![
                vm("bbbb", "shop/web-2", State::Isolated, ""),
                busy,
                vm("cccc", "payments-prod/database-199", State::Waiting, "no vCPUs yet"),
                vm("dddd", "team-b/database-1", State::Isolated, "cpuset changed"),
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
    use crate::tests::fixtures::headings;

    #[test]
    fn every_column_is_explained() {
        assert_eq!(explained("COLUMNS", Some("top")), headings(&columns()));
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
    fn rows_are_sorted_by_trouble_or_by_a_rate_with_the_unknown_last() {
        let model = model();
        let names = |sort| -> Vec<&str> {
            let rows = rows(&model, sort, |_| false).into_iter();
            rows.map(|row| row.vm.pod.pod_uid.as_str()).collect()
        };
        assert_eq!(names("trouble"), ["dddd", "cccc", "aaaa", "bbbb"]);
        assert_eq!(names("UTIL%"), ["aaaa", "cccc", "bbbb", "dddd"]);
        assert_eq!(names("VM"), ["cccc", "bbbb", "aaaa", "dddd"]);
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
