use super::*;
use crate::trace::tests::listed;

fn histogram(keys: &str, rows: &[(&[&str], u64, Option<u64>)]) -> Histogram {
    let row = |(keys, hits, sum): &(&[&str], u64, Option<u64>)| HistogramRow {
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        hits: *hits,
        sum: *sum,
    };
    Histogram {
        keys: keys.split(',').map(str::to_owned).collect(),
        rows: rows.iter().map(row).collect(),
        ..Histogram::default()
    }
}

fn counted(histograms: Vec<(&str, Vec<Histogram>)>) -> TraceCounts {
    let target = Target {
        cpus: "0-7".parse().unwrap(),
        ..Target::default()
    };
    let histograms = histograms.into_iter().map(|(event, all)| (event.to_owned(), all));
    TraceCounts::new(&target, &histograms.collect(), &BTreeSet::from([13]))
}

/// What is told of one histogram of an event.
fn told(event: &str, histogram: Histogram) -> Attribution {
    counted(vec![(event, vec![histogram])]).into_attribution()
}

#[test]
fn an_interrupt_that_drivers_share_is_counted_once() {
    let named = histogram(
        "irq,name,common_cpu",
        &[
            (&["9", "acpi", "2"], 5, None),
            (&["9", "i801_smbus", "2"], 5, None),
            (&["30", "nvme0q3", "2"], 2, None),
        ],
    );
    // For the times only; its counts are of handlers.
    let begun = histogram("irq,common_cpu", &[(&["9", "2"], 10, None)]);
    let times = histogram("n,common_cpu", &[(&["9", "2"], 10, Some(700))]);
    let counted = counted(vec![
        (plan::INTERRUPT_ENTRY, vec![begun, named]),
        ("synthetic/stelia_irq", vec![times]),
    ]);
    let expected = [(2, "30 nvme0q3", 2, None), (2, "9 acpi, i801_smbus", 5, Some(700))];
    assert_eq!(listed(&counted.into_attribution().interrupts), expected);
}

/// arm64 has no events of its own for them: the timer is interrupt 13 of each CPU, and the inter-processor interrupts are 1 to 7.
#[test]
fn interrupts_that_each_cpu_has_of_its_own_are_no_devices() {
    let named = histogram(
        "irq,name,common_cpu",
        &[
            (&["1", "IPI", "2"], 5, None),
            (&["2", "IPI", "2"], 4, None),
            (&["13", "arch_timer", "2"], 250, None),
            (&["30", "nvme0q3", "2"], 2, None),
        ],
    );
    let times = histogram(
        "n,common_cpu",
        &[
            (&["1", "2"], 5, Some(50)),
            (&["2", "2"], 4, Some(70)),
            (&["13", "2"], 250, Some(900)),
        ],
    );
    let counted = counted(vec![
        (plan::INTERRUPT_ENTRY, vec![named]),
        ("synthetic/stelia_irq", vec![times]),
    ]);
    let attribution = counted.into_attribution();
    assert_eq!(listed(&attribution.interrupts), [(2, "30 nvme0q3", 2, None)]);
    let own = [(2, "IPI", 9, Some(120)), (2, "arch_timer", 250, Some(900))];
    assert_eq!(listed(&attribution.vectors), own);
}

#[test]
fn several_histograms_of_an_event_are_added() {
    let one = histogram("next_comm,common_cpu", &[(&["a", "2"], 5, None)]);
    let rows: [(&[&str], u64, Option<u64>); 2] = [(&["a", "5"], 1, None), (&["a", "2"], 1, None)];
    let other = histogram("next_comm,common_cpu", &rows);
    let attribution = counted(vec![(plan::SWITCH, vec![one, other])]).into_attribution();
    assert_eq!(listed(&attribution.tasks), [(2, "a", 6, None), (5, "a", 1, None)]);
}

#[test]
fn what_the_kernel_calls_by_number_has_its_name_or_its_number() {
    let softirqs = histogram(
        "vec,common_cpu",
        &[(&["9", "1"], 3, None), (&["77", "1"], 1, None), (&["x", "1"], 9, None)],
    );
    let expected = [(1, "rcu", 3, None), (1, "softirq 77", 1, None)];
    assert_eq!(listed(&told(plan::SOFTIRQ_ENTRY, softirqs).softirqs), expected);
}

#[test]
fn counts_that_cannot_be_added_stay_at_the_largest_number() {
    let rows = [(&["a", "2"] as &[&str], u64::MAX, None), (&["a", "2"], 7, None)];
    let attribution = told(plan::SWITCH, histogram("next_comm,common_cpu", &rows));
    assert_eq!(listed(&attribution.tasks), [(2, "a", u64::MAX, None)]);
}

#[test]
fn of_very_many_the_least_are_told_together_and_none_is_lost() {
    let names: Vec<String> = (0..2 * MAX_ROWS_PER_KIND)
        .map(|number| format!("task{number}"))
        .collect();
    let keys: Vec<[&str; 2]> = names.iter().map(|name| [name.as_str(), "3"]).collect();
    let rows = keys.iter().zip(1..).map(|(keys, hits)| (keys.as_slice(), hits, None));
    let rows: Vec<(&[&str], u64, Option<u64>)> = rows.collect();
    let attribution = told(plan::SWITCH, histogram("next_comm,common_cpu", &rows));
    assert_eq!(attribution.tasks.len(), MAX_ROWS_PER_KIND + 1);
    let total: u64 = attribution.tasks.iter().map(|one| one.count).sum();
    assert_eq!(total, (1..=2 * MAX_ROWS_PER_KIND as u64).sum::<u64>());
    assert_eq!(attribution.tasks[0].name, format!("task{}", 2 * MAX_ROWS_PER_KIND - 1));
    assert_eq!(attribution.tasks[MAX_ROWS_PER_KIND].name, OTHERS_NAME);
}

#[test]
fn rows_that_cannot_be_read_are_a_problem() {
    let mut one = histogram("next_comm,common_cpu", &[]);
    one.unread = 2;
    let problems = told(plan::SWITCH, one).problems;
    assert_eq!(problems, ["2 rows of the kernel's counts could not be read"]);
}
