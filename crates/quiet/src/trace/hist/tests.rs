use proptest::prelude::*;

use super::*;

const INFO_OF: &str = "# event histogram\n#\n# trigger info: hist:keys=next_comm,common_cpu:vals=hitcount:sort=hitcount:size=2048 \
                       if (CPU >= 2 && CPU <= 3) && next_pid != 0 [active]\n#\n\n";

/// As the kernel prints a row.
fn printed(comm: &str, cpu: u32, hits: u64) -> String {
    format!("{{ next_comm: {comm:<48}, common_cpu: {cpu:>10} }} hitcount: {hits:>10}\n")
}

fn totals(dropped: u64) -> String {
    format!("\nTotals:\n    Hits: 3\n    Entries: 2\n    Dropped: {dropped}\n")
}

#[test]
fn names_are_whatever_a_task_calls_itself() {
    let names = [
        "sleep",
        "a b",
        "q'\"x",
        "nl\nx",
        "tab\tx",
        "\u{fffd}\u{1}",
        "",
        "x: {y},",
        "Hits: 9",
        "}",
        "{ next_comm: x",
        "\n{ next_comm: x",
        ", common_cpu: 3",
        " } hitcount: 7",
        "\n\nTotals:\n",
        "Dropped: 7",
        "\nDropped: 7\n",
        "# event histogr",
        " leading",
    ];
    let rows: String = names
        .iter()
        .zip(0..)
        .map(|(name, cpu)| printed(name, cpu, u64::from(cpu) + 1))
        .collect();
    let histograms = parse(&format!("{INFO_OF}{rows}{}", totals(2)));
    assert_eq!(histograms.len(), 1);
    let read: Vec<(&str, &str, u64)> = histograms[0]
        .rows
        .iter()
        .map(|row| (&*row.keys[0], &*row.keys[1], row.hits))
        .collect();
    let cpus: Vec<String> = (0..names.len()).map(|cpu| cpu.to_string()).collect();
    let expected: Vec<(&str, &str, u64)> = names
        .iter()
        .zip(&cpus)
        .map(|(name, cpu)| (*name, &**cpu, cpu.parse::<u64>().unwrap() + 1))
        .collect();
    assert_eq!(read, expected);
    assert_eq!((histograms[0].dropped, histograms[0].unread), (2, 0));
}

#[test]
fn sums_numbers_and_several_histograms() {
    let text = "# event histogram\n#\n# trigger info: hist:keys=irq,name,common_cpu:vals=hitcount:sort=hitcount:size=1024 [active]\n#\n\n\
        { irq:         37, name: virtio2-req.7                                     , common_cpu:          3 } hitcount:          6\n\
        \nTotals:\n    Hits: 6\n    Entries: 1\n    Dropped: 0\n\
        # event histogram\n#\n# trigger info: hist:keys=n,common_cpu:vals=hitcount,ns:sort=hitcount:size=1024 [active]\n#\n\n\
        { n:        236, common_cpu:          2 } hitcount:        455  ns:  117369415\n\
        \nTotals:\n    Hits: 455\n    Entries: 1\n    Dropped: 9\n";
    let histograms = parse(text);
    assert_eq!(histograms[0].rows[0].keys, ["37", "virtio2-req.7", "3"]);
    assert_eq!(
        (histograms[0].key_index("name"), histograms[0].key_index("ns")),
        (Some(1), None)
    );
    let row = HistogramRow {
        keys: vec!["236".into(), "2".into()],
        hits: 455,
        sum: Some(117_369_415),
    };
    assert_eq!((&histograms[1].rows, histograms[1].dropped), (&vec![row], 9));
}

#[test]
fn what_is_no_histogram_has_no_rows_and_what_is_cut_off_is_counted() {
    assert_eq!(parse(""), []);
    assert_eq!(parse("{ next_comm: x , common_cpu: 3 } hitcount: 1\n"), []);
    let cut = format!("{INFO_OF}{}", &printed("x", 3, 1)[..70]);
    assert_eq!((parse(&cut)[0].rows.len(), parse(&cut)[0].unread), (0, 1));
    let long = format!("{INFO_OF}{{ next_comm: {}", "x\n".repeat(1 << 20));
    assert!(parse(&long)[0].rows.is_empty());
    assert_eq!(parse(&long)[0].unread, 1);
}

proptest! {
    /// Rows of names of at most 15 bytes are all read, with their CPUs and counts.
    #[test]
    fn no_name_changes_a_count(
        rows in prop::collection::vec((prop::collection::vec(1_u8..=255, 0..15), 0_u32..8192, any::<u64>()), 0..20),
        dropped in any::<u64>(),
    ) {
        let names: Vec<String> = rows.iter().map(|(name, ..)| String::from_utf8_lossy(name).into_owned()).collect();
        let text: String = rows.iter().zip(&names).map(|((_, cpu, hits), name)| printed(name, *cpu, *hits)).collect();
        let histograms = parse(&format!("{INFO_OF}{text}{}", totals(dropped)));
        let read: Vec<(u32, u64)> =
            histograms[0].rows.iter().map(|row| (row.keys[1].parse().unwrap(), row.hits)).collect();
        let expected: Vec<(u32, u64)> = rows.iter().map(|(_, cpu, hits)| (*cpu, *hits)).collect();
        prop_assert_eq!(read, expected);
        prop_assert_eq!((histograms[0].dropped, histograms[0].unread), (dropped, 0));
        for (row, name) in histograms[0].rows.iter().zip(&names) {
            prop_assert_eq!(row.keys[0].trim(), name.trim());
        }
    }
}
