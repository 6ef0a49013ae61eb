use super::*;

fn numa(node: u32, free: u64, cores: u64) -> Numa {
    Numa {
        node,
        cpus: 2 * cores,
        free_cpus: 2 * free,
        cores: Some(cores),
        devices: Vec::new(),
        free_cores: Some(free),
    }
}

fn nodes(rows: impl IntoIterator<Item = (String, Vec<Numa>)>) -> Nodes {
    let row = |(name, numa)| Row {
        name,
        numa,
        ..Row::default()
    };
    Nodes {
        nodes: rows.into_iter().map(row).collect(),
        problems: Vec::new(),
    }
}

#[test]
fn a_bar_has_a_free_sign_if_and_only_if_something_is_free() {
    for all in [1, 2, 7, 16, 17, 64, 1000] {
        for free in 0..=all {
            let bar = bar(&numa(0, free, all), 16, FREE);
            assert_eq!(bar.len() as u64, all.min(16));
            assert_eq!(bar.contains('.'), free > 0, "{free}/{all}");
            assert!(all == 1 || bar.contains('#') == (free < all), "{free}/{all}");
        }
    }
    // What nobody has.
    assert_eq!(bar(&numa(0, 5, 0), 16, FREE), "");
    let absurd = Numa {
        cpus: u64::MAX,
        free_cpus: u64::MAX,
        ..Numa::default()
    };
    assert_eq!(bar(&absurd, 16, FREE), "................");
}

#[test]
fn few_nodes_are_a_line_each() {
    let nodes = nodes([
        ("worker-1".to_owned(), vec![numa(0, 3, 8), numa(1, 8, 8)]),
        ("worker-2".to_owned(), vec![numa(0, 0, 32)]),
        ("worker-3".to_owned(), Vec::new()),
    ]);
    let map = Map::of(&nodes, 50);
    assert_eq!(
        map.text(TextStyle::from(true)),
        "NODE      NUMA 0                 NUMA 1\n\
         worker-1  #####... 3/8           ........ 8/8\n\
         worker-2  ################ 0/32  -\n\
         \n\
         2 nodes: 11 of 48 whole cores free. # taken or reserved, . free; nothing is known of 1 node\n"
    );
    let sparse = self::nodes([("worker-1".to_owned(), vec![numa(0, 3, 8), numa(8, 8, 8)])]);
    let text = Map::of(&sparse, 50).text(TextStyle::default());
    assert_eq!(text, "worker-1  0: #####... 3/8  8: ........ 8/8\n");
    assert_eq!(
        Map::of(&self::nodes([]), 50).text(TextStyle::from(true)),
        "No nodes with CPUs that are known.\n"
    );
}

#[test]
fn of_ten_thousand_nodes_those_that_look_alike_are_one_line() {
    let many = (0..10_000_u64).map(|number| {
        let (one, other) = (number % 33, number * 7 % 33);
        (
            format!("worker-{number:05}"),
            vec![numa(0, one, 32), numa(1, other, 32)],
        )
    });
    let map = Map::of(&nodes(many), 20);
    assert!(map.aggregated);
    assert_eq!((map.lines.len(), map.nodes), (20, 10_000));
    let shown: u64 = map.lines.iter().map(|line| line.count).sum();
    assert_eq!(shown + map.more, 10_000);
    let first = &map.lines[0];
    assert_eq!(
        (first.bars[0].as_str(), first.nodes[0].as_str()),
        ("........", "worker-00032"),
        "{first:?}"
    );
    let free: Vec<usize> = map.lines.iter().map(|line| line.bars[0].matches('.').count()).collect();
    assert!(free.is_sorted_by(|one, other| one >= other), "{free:?}");
    let text = map.text(TextStyle::from(true));
    assert!(
        text.lines().count() < 25 && text.starts_with("NODES  MOST FREE  2ND"),
        "{text}"
    );
}

#[test]
fn what_is_free_on_a_node_that_admits_no_vm_has_a_sign_and_a_number_of_its_own() {
    let mut nodes = nodes([
        ("w-1.dc1.example".to_owned(), vec![numa(0, 8, 8)]),
        ("w-2.dc1.example".to_owned(), vec![numa(0, 2, 8)]),
    ]);
    nodes.nodes[0].admits_none = true;
    let terminal = TextStyle {
        width: Some(80),
        ..TextStyle::from(true)
    };
    let map = Map::of(&nodes, 50);
    assert_eq!((map.free_cores, map.unavailable_cores), (10, 8));
    assert_eq!(
        map.text(terminal),
        "NODE  NUMA 0\nw-1   -------- 8/8\nw-2   ######.. 2/8\n\n\
         2 nodes: 2 of 16 whole cores free. # taken or reserved, . free, - free on a node\n\
         that admits no VM (8 more on 1 node)\n"
    );
    let folded = Map::of(&nodes, 1);
    assert_eq!(folded.lines[0].nodes, ["w-2.dc1.example"]);
}
