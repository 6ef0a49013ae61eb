//! The rows and columns: their values, their order, and which columns fit.

use std::cmp::Ordering;

use unicode_width::UnicodeWidthStr;

use super::history::{HISTORY_SAMPLES, bars};
use crate::shared::daemon::Trouble;
use crate::shared::kernel::rates::{InstanceRates, Model, Rates, VcpuRates, mean};
use crate::shared::output::{self, Meaning, column};

/// A row: an instance, or one of its vCPUs below it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub instance: &'a InstanceRates,
    pub vcpu: Option<&'a VcpuRates>,
}

impl Row<'_> {
    fn rates(&self) -> &Rates {
        self.vcpu.map_or(&self.instance.rates, |vcpu| &vcpu.rates)
    }

    /// How busy it was in the last samples.
    fn recent(&self) -> &[Option<f64>] {
        self.vcpu.map_or(&self.instance.recent, |vcpu| &vcpu.recent)
    }

    /// What disturbs it.
    pub(super) fn reason(&self) -> Option<&str> {
        let reason = self.vcpu.map_or(&self.instance.reason, |vcpu| &vcpu.reason);
        reason.as_deref()
    }

    /// How much is wrong.
    pub(super) fn meaning(&self) -> Meaning {
        match self.reason() {
            _ if !self.instance.whole => Meaning::Broken,
            Some(_) => Meaning::Attention,
            None => Meaning::Plain,
        }
    }
}

/// What a column shows of a row, and how rows are sorted by it.
enum Value {
    /// Ascends.
    Text(fn(Row<'_>) -> String, fn(Row<'_>, Row<'_>) -> Ordering),
    /// Descends, as the next one.
    Rate(fn(&Rates) -> Option<f64>),
    /// A vCPU has none.
    OfInstance(fn(&InstanceRates) -> Option<f64>),
    /// Bars of the last samples.
    Recent,
}

pub(crate) struct Column {
    pub title: &'static str,
    width: usize,
    /// A narrow terminal shows the columns with the lowest ones.
    rank: usize,
    value: Value,
}

/// A column of plain tables, by its place in [`COLUMNS`].
pub(super) fn plain<'a, const PLACE: usize>() -> stelia_table::Column<Row<'a>> {
    column(COLUMNS[PLACE].title, |row: &Row<'_>| COLUMNS[PLACE].cell(*row))
}

const INSTANCE: &str = "INSTANCE";
const STATE: &str = "STATE";
const CPUS: &str = "CPUS";

/// Columns of what resctrl counts; shown only on hardware where it does.
pub(super) const OF_CACHES: [&str; 2] = ["LLC-MIB", "MEM-MIB/S"];

/// The columns from left to right.
pub(crate) static COLUMNS: [Column; 14] = [
    Column {
        title: INSTANCE,
        // Room for the first group of a UID, and for a vCPU's name.
        width: 10,
        rank: 0,
        value: Value::Text(
            |row| match row.vcpu {
                None => row.instance.pod.to_string(),
                Some(vcpu) => format!("  vcpu {}", vcpu.name),
            },
            |a, b| a.instance.pod.to_string().cmp(&b.instance.pod.to_string()),
        ),
    },
    Column {
        title: STATE,
        width: 10,
        // The reason has it too where it is not isolated.
        rank: 6,
        value: Value::Text(
            |row| row.vcpu.map_or_else(|| row.instance.state.clone(), |_| String::new()),
            |a, b| a.instance.state.cmp(&b.instance.state),
        ),
    },
    // The exclusive CPUs, or the CPU that a vCPU is pinned to.
    Column {
        title: CPUS,
        width: 8,
        rank: 3,
        value: Value::Text(
            |row| match row.vcpu {
                None => row.instance.cpus.to_string(),
                Some(vcpu) => vcpu.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
            },
            |a, b| {
                let pinned = |row: Row<'_>| row.vcpu.map(|vcpu| vcpu.cpu);
                a.instance.cpus.cmp(&b.instance.cpus).then(pinned(a).cmp(&pinned(b)))
            },
        ),
    },
    number("UTIL%", 6, 1, Value::Rate(|rates| rates.utilisation_percent)),
    number("DELAY%", 6, 2, Value::Rate(|rates| rates.delay_percent)),
    Column {
        title: "BUSY",
        width: HISTORY_SAMPLES,
        rank: 5,
        value: Value::Recent,
    },
    number("MIGR/S", 6, 10, Value::Rate(|rates| rates.migrations_per_second)),
    number("INVOL/S", 7, 9, Value::Rate(|rates| rates.involuntary_per_second)),
    number("FLOAT%", 6, 8, Value::OfInstance(|instance| instance.float_percent)),
    number(
        "THROT%",
        6,
        11,
        Value::OfInstance(|instance| instance.throttled_percent),
    ),
    number(
        "IRQ/S",
        6,
        7,
        Value::OfInstance(|instance| instance.device_interrupts_per_second),
    ),
    number("LLC-MIB", 7, 12, Value::OfInstance(InstanceRates::llc_mib)),
    number(
        "MEM-MIB/S",
        9,
        13,
        Value::OfInstance(InstanceRates::memory_mib_per_second),
    ),
    // The last, because it has what the others leave over.
    Column {
        title: "REASON",
        // Room for "floats: vCPUs not attached".
        width: 26,
        rank: 4,
        value: Value::Text(
            |row| row.reason().unwrap_or_default().to_owned(),
            |a, b| {
                // What is not disturbed has an empty one, which is not the first.
                let order = |row: &Row<'_>| (row.reason().is_none(), row.reason().map(str::to_owned));
                order(&a).cmp(&order(&b))
            },
        ),
    },
];

/// The rank of the states where they come before the CPUs.
const STATES_RANK: usize = 3;

const fn number(title: &'static str, width: usize, rank: usize, value: Value) -> Column {
    Column {
        title,
        width,
        rank,
        value,
    }
}

impl Column {
    pub(crate) fn is_number(&self) -> bool {
        !matches!(self.value, Value::Text(..) | Value::Recent)
    }

    /// Whether it has the names, whose ends tell them apart.
    pub(crate) fn is_name(&self) -> bool {
        self.title == INSTANCE
    }

    fn number(&self, row: Row<'_>) -> Option<f64> {
        match self.value {
            Value::Text(..) => None,
            Value::Rate(of) => of(row.rates()),
            Value::OfInstance(of) => of(row.instance).filter(|_| row.vcpu.is_none()),
            Value::Recent => mean(row.recent()),
        }
    }

    pub(crate) fn cell(&self, row: Row<'_>) -> String {
        match self.value {
            Value::Text(of, _) => output::printable(&of(row)),
            Value::OfInstance(_) if row.vcpu.is_some() => String::new(),
            Value::Recent => bars(row.recent()),
            _ => number_text(self.number(row)),
        }
    }

    fn compare(&self, a: Row<'_>, b: Row<'_>, reverse: bool) -> Ordering {
        match (&self.value, self.number(a), self.number(b)) {
            (Value::Text(_, order), ..) if reverse => order(b, a),
            (Value::Text(_, order), ..) => order(a, b),
            (_, Some(a), Some(b)) if reverse => a.total_cmp(&b),
            (_, Some(a), Some(b)) => b.total_cmp(&a),
            // The unknown is last both ways.
            (_, a, b) => b.is_some().cmp(&a.is_some()),
        }
    }
}

/// The width of the longest name of an instance.
pub(crate) fn names_width(model: &Model) -> usize {
    let names = model.instances.iter().map(|instance| instance.pod.to_string().width());
    names.max().unwrap_or(0)
}

/// Whether VMs are degraded for no reason of their own: then all reasons are alike, and the states tell VMs apart.
pub(crate) fn needs_states(model: &Model) -> bool {
    let mut instances = model.instances.iter();
    instances.any(|one| !one.whole && one.trouble != Trouble::Degraded)
}

/// The columns that fit into `width`, left to right, each by its place in [`COLUMNS`] and with its own width; columns are
/// one blank apart; those of caches only with `caches`; with `states` the states come before the CPUs. The names, of which the longest is `names` wide, come before the
/// reasons: these are cut first.
pub(crate) fn fitting(width: usize, names: usize, caches: bool, states: bool) -> Vec<(usize, usize)> {
    let mut ranked: Vec<(usize, &Column)> = COLUMNS.iter().enumerate().collect();
    ranked.retain(|(_, column)| caches || !OF_CACHES.contains(&column.title));
    // Equal ranks stay in the order from left to right.
    ranked.sort_by_key(|(_, column)| match column.title {
        STATE if states => STATES_RANK,
        CPUS if states => STATES_RANK + 2,
        _ => column.rank,
    });
    let mut used = 0;
    let mut fitting: Vec<(usize, usize)> = Vec::new();
    for (place, column) in ranked {
        let least = match place {
            // More than a third of the line only where no column is lost by it.
            0 => column.width.max(names.min(width / 3)),
            _ => column.width,
        };
        let needed = least + usize::from(!fitting.is_empty());
        if used + needed > width && !fitting.is_empty() {
            break;
        }
        used += needed;
        fitting.push((place, least));
    }
    fitting.sort_unstable();
    let mut left = width.saturating_sub(used);
    if let Some((_, wide)) = fitting.first_mut() {
        let more = names.saturating_sub(*wide).min(left);
        *wide += more;
        left -= more;
    }
    if let Some((_, reason)) = fitting.last_mut().filter(|(place, _)| *place + 1 == COLUMNS.len()) {
        *reason += left;
    }
    fitting
}

/// A number with one digit after the point; `-` for `None`.
fn number_text(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// What is wrong with an instance comes first, in the order of [`Trouble`], then what something disturbs;
/// then by name.
fn by_trouble(a: Row<'_>, b: Row<'_>) -> Ordering {
    let rank = |row: Row<'_>| {
        let is_disturbed = match row.vcpu {
            Some(vcpu) => vcpu.reason.is_some(),
            None => row.instance.is_disturbed(),
        };
        (row.instance.trouble, !is_disturbed)
    };
    // The vCPUs of one instance that are equally disturbed stay in their order.
    let name = |row: Row<'_>| row.vcpu.is_none().then(|| row.instance.pod.to_string());
    rank(a).cmp(&rank(b)).then_with(|| name(a).cmp(&name(b)))
}

/// The rows sorted by a column, or with what is wrong first: instances, and within each its vCPUs. The sort is stable: equal rows stay
/// in the order of the pods.
pub(crate) fn rows(model: &Model, sort: Option<usize>, reverse: bool, collapsed: bool) -> Vec<Row<'_>> {
    let order = |a: &Row<'_>, b: &Row<'_>| match sort {
        Some(column) => COLUMNS[column].compare(*a, *b, reverse),
        None if reverse => by_trouble(*b, *a),
        None => by_trouble(*a, *b),
    };
    let instances = model.instances.iter();
    let mut instances: Vec<Row<'_>> = instances.map(|instance| Row { instance, vcpu: None }).collect();
    instances.sort_by(order);
    instances
        .into_iter()
        .flat_map(|row| {
            let vcpus = row.instance.vcpus.iter().filter(|_| !collapsed);
            let mut vcpus: Vec<_> = vcpus
                .map(|vcpu| Row {
                    vcpu: Some(vcpu),
                    ..row
                })
                .collect();
            vcpus.sort_by(order);
            std::iter::once(row).chain(vcpus)
        })
        .collect()
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::shared::daemon::Pod;

    fn rates(utilisation: f64, delay: f64) -> Rates {
        Rates {
            utilisation_percent: Some(utilisation),
            delay_percent: Some(delay),
            migrations_per_second: None,
            involuntary_per_second: Some(delay * 2.0),
            forced_idle_percent: None,
        }
    }

    /// Two instances: one with two vCPUs, and a degraded one without vCPUs.
    pub(in crate::view::top) fn model() -> Model {
        let vcpu = |name: &str, cpu: u32, rates: Rates| VcpuRates {
            name: name.to_owned(),
            tid: 70,
            cpu: Some(cpu),
            rates,
            ..VcpuRates::default()
        };
        let whole = InstanceRates {
            pod: Pod::unnamed("3ceda12c-3ee9-40fa-9f42-61428fe654a6"),
            state: "isolated".to_owned(),
            whole: true,
            cpus: "4-5".parse().unwrap(),
            float_percent: Some(12.3),
            throttled_percent: Some(0.0),
            device_interrupts_per_second: Some(0.0),
            rates: rates(140.0, 0.5),
            vcpus: vec![vcpu("0", 4, rates(40.0, 0.5)), vcpu("1", 5, rates(100.0, 0.0))],
            ..InstanceRates::default()
        };
        let broken = InstanceRates {
            pod: Pod::unnamed("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5"),
            state: "floating".to_owned(),
            whole: false,
            cpus: "2".parse().unwrap(),
            float_percent: Some(99.0),
            reason: Some("degraded: kubelet gave CPU 2 away; floats: its vCPUs are being pinned".to_owned()),
            trouble: Trouble::Degraded,
            ..InstanceRates::default()
        };
        Model {
            seconds: 1.0,
            instances: vec![whole, broken],
        }
    }

    /// The same with names and a history, and a vCPU that is disturbed.
    pub(in crate::view::top) fn disturbed() -> Model {
        let mut model = model();
        for (instance, name) in model.instances.iter_mut().zip(["database-0-x7k2p-primary", "web"]) {
            instance.pod.pod_namespace = "kubevirt".to_owned();
            instance.pod.pod_name = format!("virt-launcher-{name}");
        }
        let whole = &mut model.instances[0];
        whole.recent = [0.0, 0.3, 0.5, 0.7].map(Some).into();
        whole.reason = Some("vCPU 1 waits 12 % for a CPU, preempted 30/s".to_owned());
        whole.vcpus[0].recent = [0.0, 0.0, 0.0, 0.4].map(Some).into();
        whole.vcpus[1].recent = vec![None, Some(0.6), Some(1.0), Some(1.0)];
        whole.vcpus[1].reason = Some("waits 12 % for a CPU, preempted 30/s".to_owned());
        model
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{disturbed, model};
    use super::*;

    fn place(title: &str) -> usize {
        COLUMNS.iter().position(|column| column.title == title).unwrap()
    }

    fn names(sort: &str, reverse: bool) -> Vec<String> {
        let model = model();
        let rows = rows(&model, Some(place(sort)), reverse, false);
        rows.iter()
            .map(|row| COLUMNS[0].cell(*row).trim().chars().take(6).collect())
            .collect()
    }

    #[test]
    fn columns_go_by_priority_and_never_beyond_the_width() {
        for (width, names) in (20..240).flat_map(|width| [0, 36, 120].map(|names| (width, names))) {
            let columns = fitting(width, names, true, false);
            let used: usize = columns.iter().map(|(_, width)| width).sum::<usize>() + columns.len() - 1;
            assert!(used <= width, "{width}: {columns:?}");
            assert!(columns.iter().any(|(column, _)| *column == place("UTIL%")));
        }
        let titles = |width, names| -> Vec<&str> {
            let columns = fitting(width, names, false, false).into_iter();
            columns.map(|(column, _)| COLUMNS[column].title).collect()
        };
        assert_eq!(titles(40, 36), ["INSTANCE", "CPUS", "UTIL%", "DELAY%"]);
        let eighty = ["INSTANCE", "CPUS", "UTIL%", "DELAY%", "REASON"];
        assert_eq!(titles(80, 36), eighty);
        assert_eq!(titles(80, 200), eighty);
        // Where all have the reason of the node, the states are the difference.
        let columns = fitting(80, 36, false, true).into_iter();
        let columns: Vec<&str> = columns.map(|(column, _)| COLUMNS[column].title).collect();
        assert_eq!(columns, ["INSTANCE", "STATE", "UTIL%", "DELAY%", "REASON"]);
        assert_eq!(
            [(144, 36), (162, 200)].map(|(width, names)| titles(width, names).len()),
            [COLUMNS.len() - OF_CACHES.len(); 2]
        );
        // The column of names is always shown.
        assert_eq!(fitting(3, 36, true, false).len(), 1);
        assert_eq!(fitting(200, 36, true, false).len(), COLUMNS.len());
    }

    #[test]
    fn names_are_whole_where_there_is_room_and_the_reasons_have_the_rest() {
        let of = |width, names| {
            let columns = fitting(width, names, false, false);
            (columns[0].1, columns[columns.len() - 1].1)
        };
        assert_eq!(of(100, 36), (36, 29));
        assert_eq!(of(200, 60).0, 60);
        // Short ones leave their room to the reasons.
        assert!(of(80, 12).1 > of(80, 36).1);
    }

    #[test]
    fn vcpus_stay_with_their_instance_whatever_the_order() {
        assert_eq!(names("INSTANCE", false), ["3ceda1", "vcpu 0", "vcpu 1", "b9e4f7"]);
        assert_eq!(names("INSTANCE", true), ["b9e4f7", "3ceda1", "vcpu 0", "vcpu 1"]);
        assert_eq!(names("UTIL%", false), ["3ceda1", "vcpu 1", "vcpu 0", "b9e4f7"]);
        assert_eq!(names("FLOAT%", false), ["b9e4f7", "3ceda1", "vcpu 0", "vcpu 1"]);
    }

    #[test]
    fn the_unknown_is_last_both_ways() {
        assert_eq!(names("DELAY%", false).last().unwrap(), "b9e4f7");
        assert_eq!(names("DELAY%", true), ["3ceda1", "vcpu 1", "vcpu 0", "b9e4f7"]);
        // Without a history, and what is not disturbed.
        assert_eq!(names("BUSY", false), names("INSTANCE", false));
        assert_eq!(names("REASON", false), ["b9e4f7", "3ceda1", "vcpu 0", "vcpu 1"]);
    }

    #[test]
    fn the_busiest_of_the_last_samples_is_first() {
        let model = disturbed();
        let vcpus = |reverse| -> Vec<String> {
            let rows = rows(&model, Some(place("BUSY")), reverse, false);
            rows.iter().filter_map(|row| Some(row.vcpu?.name.clone())).collect()
        };
        assert_eq!(
            (vcpus(false).join(" "), vcpus(true).join(" ")),
            ("1 0".to_owned(), "0 1".to_owned())
        );
    }

    #[test]
    fn what_is_wrong_is_first_and_then_comes_what_is_not_isolated() {
        let mut model = model();
        // The cause of the whole node that `b` has says nothing about the order.
        let others = [
            ("c", "floating", Trouble::Floating),
            ("b", "isolated", Trouble::Calm),
            ("a", "isolated", Trouble::Calm),
        ];
        for (name, state, trouble) in others {
            model.instances.push(InstanceRates {
                pod: crate::shared::daemon::Pod::unnamed(name),
                state: state.to_owned(),
                whole: name != "b",
                reason: (name == "b").then(|| "degraded: the file is empty".to_owned()),
                trouble,
                ..InstanceRates::default()
            });
        }
        model.instances[0].vcpus[1].reason = Some("waits".to_owned());
        let order = |reverse| -> Vec<String> {
            let rows = rows(&model, None, reverse, true).into_iter();
            rows.map(|row| row.instance.pod.to_string().chars().take(4).collect())
                .collect()
        };
        assert_eq!(order(false), ["b9e4", "c", "3ced", "a", "b"]);
        assert_eq!(order(true), ["b", "a", "3ced", "c", "b9e4"]);
    }
}
