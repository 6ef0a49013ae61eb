//! The rows and columns: their values, their order, and which columns fit.

use std::cmp::Ordering;

use super::super::view;
use super::rates::{InstanceRates, Model, Rates};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Column {
    /// The pod, and below it its vCPUs.
    #[default]
    Name,
    State,
    /// The exclusive CPUs, or the CPU that a vCPU is pinned to.
    Cpus,
    Utilisation,
    Delay,
    Migrations,
    Involuntary,
    Float,
    Throttled,
}

/// The columns from left to right.
const ORDER: [Column; 9] = [
    Column::Name,
    Column::State,
    Column::Cpus,
    Column::Utilisation,
    Column::Delay,
    Column::Migrations,
    Column::Involuntary,
    Column::Float,
    Column::Throttled,
];

/// The columns by importance: a narrow terminal shows the first ones.
const PRIORITY: [Column; 9] = [
    Column::Name,
    Column::Utilisation,
    Column::Delay,
    Column::Cpus,
    Column::State,
    Column::Float,
    Column::Involuntary,
    Column::Migrations,
    Column::Throttled,
];

/// The length of a pod's UID.
const NAME_MAX: usize = 36;

impl Column {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Column::Name => "INSTANCE",
            Column::State => "STATE",
            Column::Cpus => "CPUS",
            Column::Utilisation => "UTIL%",
            Column::Delay => "DELAY%",
            Column::Migrations => "MIGR/S",
            Column::Involuntary => "INVOL/S",
            Column::Float => "FLOAT%",
            Column::Throttled => "THROT%",
        }
    }

    pub(crate) fn is_number(self) -> bool {
        !matches!(self, Column::Name | Column::State | Column::Cpus)
    }

    fn width(self) -> usize {
        match self {
            // Room for the first group of a UID, and for a vCPU's name.
            Column::Name => 10,
            Column::State => 10,
            Column::Cpus => 8,
            Column::Involuntary => 7,
            _ => 6,
        }
    }
}

/// The columns that fit into `width`, left to right, each with its own width; columns are one blank apart.
pub(crate) fn fitting(width: usize) -> Vec<(Column, usize)> {
    let mut used = 0;
    let mut wanted: Vec<Column> = Vec::new();
    for column in PRIORITY {
        let needed = column.width() + usize::from(!wanted.is_empty());
        if used + needed > width && !wanted.is_empty() {
            break;
        }
        used += needed;
        wanted.push(column);
    }
    let spare = width.saturating_sub(used);
    let columns = ORDER.into_iter().filter(|column| wanted.contains(column));
    columns
        .map(|column| match column {
            Column::Name => (column, (column.width() + spare).min(NAME_MAX)),
            other => (other, other.width()),
        })
        .collect()
}

/// A row: an instance, or one of its vCPUs below it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    cells: [String; 9],
    pub instance: bool,
    /// Whether the instance's isolation is not degraded.
    pub whole: bool,
}

impl Row {
    pub(crate) fn cell(&self, column: Column) -> &str {
        let place = ORDER.iter().position(|one| *one == column);
        place.and_then(|place| self.cells.get(place)).map_or("", String::as_str)
    }
}

/// A number with one digit after the point; `-` for `None`.
pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn cells(name: String, state: &str, cpus: String, rates: &Rates, of_instance: [String; 2]) -> [String; 9] {
    let [float, throttled] = of_instance;
    [
        name,
        view::printable(state),
        cpus,
        number(rates.utilisation_percent),
        number(rates.delay_percent),
        number(rates.migrations_per_second),
        number(rates.involuntary_per_second),
        float,
        throttled,
    ]
}

fn of_rates(rates: &Rates, column: Column) -> Option<f64> {
    match column {
        Column::Utilisation => rates.utilisation_percent,
        Column::Delay => rates.delay_percent,
        Column::Migrations => rates.migrations_per_second,
        Column::Involuntary => rates.involuntary_per_second,
        _ => None,
    }
}

fn of_instance(instance: &InstanceRates, column: Column) -> Option<f64> {
    match column {
        Column::Float => instance.float_percent,
        Column::Throttled => instance.throttled_percent,
        _ => of_rates(&instance.rates, column),
    }
}

/// Orders numbers from high to low, unknown ones last; `reverse` from low to high.
fn falling(a: Option<f64>, b: Option<f64>, reverse: bool) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if reverse => a.total_cmp(&b),
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn turned(order: Ordering, reverse: bool) -> Ordering {
    if reverse { order.reverse() } else { order }
}

/// The rows sorted by a column: instances, and within each its vCPUs. Names, states and CPUs ascend, numbers descend.
pub(crate) fn rows(model: &Model, sort: Column, reverse: bool, collapsed: bool) -> Vec<Row> {
    let mut instances: Vec<&InstanceRates> = model.instances.iter().collect();
    // The sort is stable: equal rows stay in the order of the pods.
    instances.sort_by(|a, b| match sort {
        Column::Name => turned(a.pod.cmp(&b.pod), reverse),
        Column::State => turned(a.state.cmp(&b.state), reverse),
        Column::Cpus => turned(a.cpus.cmp(&b.cpus), reverse),
        number => falling(of_instance(a, number), of_instance(b, number), reverse),
    });
    let mut rows = Vec::new();
    for instance in instances {
        let own = [number(instance.float_percent), number(instance.throttled_percent)];
        let name = view::printable(&instance.pod);
        rows.push(Row {
            cells: cells(name, &instance.state, instance.cpus.to_string(), &instance.rates, own),
            instance: true,
            whole: instance.whole,
        });
        let mut vcpus: Vec<_> = if collapsed {
            Vec::new()
        } else {
            instance.vcpus.iter().collect()
        };
        vcpus.sort_by(|a, b| match sort {
            Column::Cpus => turned(a.cpu.cmp(&b.cpu), reverse),
            column if column.is_number() => falling(of_rates(&a.rates, column), of_rates(&b.rates, column), reverse),
            _ => Ordering::Equal,
        });
        rows.extend(vcpus.into_iter().map(|vcpu| {
            let cpu = vcpu.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string());
            Row {
                cells: cells(
                    format!("  vcpu {}", vcpu.name),
                    "",
                    cpu,
                    &vcpu.rates,
                    Default::default(),
                ),
                instance: false,
                whole: instance.whole,
            }
        }));
    }
    rows
}

#[cfg(test)]
pub(super) mod testing {
    use super::super::rates::VcpuRates;
    use super::*;

    fn rates(utilisation: f64, delay: f64) -> Rates {
        Rates {
            utilisation_percent: Some(utilisation),
            delay_percent: Some(delay),
            migrations_per_second: None,
            involuntary_per_second: Some(delay * 2.0),
        }
    }

    /// Two instances: one with two vCPUs, and a degraded one without vCPUs.
    pub(in crate::top) fn model() -> Model {
        let vcpu = |name: &str, cpu: u32, rates: Rates| VcpuRates {
            name: name.to_owned(),
            tid: 70,
            cpu: Some(cpu),
            rates,
        };
        let whole = InstanceRates {
            pod: "3ceda12c-3ee9-40fa-9f42-61428fe654a6".to_owned(),
            state: "isolated".to_owned(),
            whole: true,
            cpus: "4-5".parse().unwrap(),
            float_percent: Some(12.3),
            throttled_percent: Some(0.0),
            rates: rates(140.0, 0.5),
            vcpus: vec![vcpu("0", 4, rates(40.0, 0.5)), vcpu("1", 5, rates(100.0, 0.0))],
        };
        let broken = InstanceRates {
            pod: "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5".to_owned(),
            state: "floating".to_owned(),
            whole: false,
            cpus: "2".parse().unwrap(),
            float_percent: Some(99.0),
            ..InstanceRates::default()
        };
        Model {
            seconds: 1.0,
            instances: vec![whole, broken],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::model;
    use super::*;

    fn names(sort: Column, reverse: bool) -> Vec<String> {
        let rows = rows(&model(), sort, reverse, false);
        rows.iter()
            .map(|row| row.cell(Column::Name).trim().chars().take(6).collect())
            .collect()
    }

    #[test]
    fn columns_go_by_priority_and_never_beyond_the_width() {
        for width in 20..200 {
            let columns = fitting(width);
            let used: usize = columns.iter().map(|(_, width)| width).sum::<usize>() + columns.len() - 1;
            assert!(used <= width, "{width}: {columns:?}");
            assert!(columns.iter().any(|(column, _)| *column == Column::Utilisation));
        }
        assert_eq!(fitting(80).len(), 9);
        let narrow: Vec<Column> = fitting(40).into_iter().map(|(column, _)| column).collect();
        assert_eq!(narrow, [Column::Name, Column::Cpus, Column::Utilisation, Column::Delay]);
        // The column of names is always shown.
        assert_eq!(fitting(3).len(), 1);
    }

    #[test]
    fn vcpus_stay_with_their_instance_whatever_the_order() {
        assert_eq!(names(Column::Name, false), ["3ceda1", "vcpu 0", "vcpu 1", "b9e4f7"]);
        assert_eq!(names(Column::Name, true), ["b9e4f7", "3ceda1", "vcpu 0", "vcpu 1"]);
        assert_eq!(
            names(Column::Utilisation, false),
            ["3ceda1", "vcpu 1", "vcpu 0", "b9e4f7"]
        );
        assert_eq!(names(Column::Float, false), ["b9e4f7", "3ceda1", "vcpu 0", "vcpu 1"]);
    }

    #[test]
    fn the_unknown_is_last_both_ways() {
        assert_eq!(names(Column::Delay, false).last().unwrap(), "b9e4f7");
        assert_eq!(names(Column::Delay, true), ["3ceda1", "vcpu 1", "vcpu 0", "b9e4f7"]);
    }

    #[test]
    fn collapsed_there_are_instances_only() {
        let rows = rows(&model(), Column::Name, false, true);
        assert!(rows.len() == 2 && rows.iter().all(|row| row.instance));
        assert_eq!(
            (rows[0].cell(Column::Utilisation), rows[0].cell(Column::Migrations)),
            ("140.0", "-")
        );
    }
}
