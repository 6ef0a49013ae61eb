use super::fake::{Resctrl, cpus};
use super::*;
use crate::files::Files as _;
use crate::order::{CacheClass, OrderedVm};

/// Pods with their CPUs and classes; gold has 4 ways and half of the bandwidth, silver 3 ways.
fn order(counted: bool, vms: &[(&str, &str, &str)]) -> Order {
    let class = |ways, percent| CacheClass {
        l3_ways: Some(ways),
        memory_bandwidth: percent,
    };
    let vms = vms.iter().map(|(pod, list, class)| {
        let vm = OrderedVm {
            cpus: cpus(list),
            cache_class: (!class.is_empty()).then(|| (*class).to_owned()),
            ..OrderedVm::default()
        };
        ((*pod).to_owned(), vm)
    });
    Order {
        vms: vms.collect(),
        cache_classes: [("gold".into(), class(4, Some(45))), ("silver".into(), class(3, None))].into(),
        cache_monitoring: counted,
        ..Order::default()
    }
}

fn given(fake: &Resctrl, order: &Order) -> Report {
    let mut report = Report::default();
    let system = System {
        files: fake,
        store: fake,
    };
    carry_out(system, order, &mut CacheHistory::default(), &mut report);
    report
}

fn texts(report: &Report) -> Vec<(&str, &str)> {
    let problems = report.problems.iter();
    problems
        .map(|problem| (problem.pod.as_str(), problem.text.as_str()))
        .collect()
}

/// The only problem.
fn only(report: &Report) -> (&str, &str) {
    assert_eq!(report.problems.len(), 1, "{report:?}");
    texts(report)[0]
}

#[test]
fn vms_are_in_the_groups_of_their_classes_and_counted_by_their_cpus() {
    let fake = Resctrl::new();
    let wanted = order(true, &[("a", "2-3", "gold"), ("b", "4-5", "gold"), ("c", "10-11", "")]);
    let report = given(&fake, &wanted);
    assert_eq!(texts(&report), []);
    assert_eq!(fake.names(), ["", "stelia-gold"]);
    let gold = fake.group("stelia-gold");
    assert_eq!(
        (gold.cpus.to_string(), gold.masks[&1], gold.bandwidth[&0]),
        ("2-5".into(), 0xf, 50)
    );
    let monitors = ["stelia-a 2-3", "stelia-b 4-5"];
    assert_eq!(fake.monitors("stelia-gold"), monitors);
    assert_eq!(fake.monitors(""), ["stelia-c 10-11"]);
    // Of the one cache that the VM has CPUs at.
    let uses = CacheUse {
        class: "gold".into(),
        llc_bytes: Some(4096),
        memory_bytes: Some(1_000_000),
    };
    assert_eq!((&report.caches["a"], report.caches["c"].class.as_str()), (&uses, ""));
    let again = given(&fake, &wanted);
    assert_eq!((again.writes, again.caches.len()), (0, 3));
}

#[test]
fn an_order_without_vms_leaves_nothing_of_ours_and_all_of_others() {
    let fake = Resctrl::new();
    fake.foreign("theirs");
    fake.foreign("mon_groups/theirs");
    given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "")]));
    given(&fake, &order(true, &[]));
    assert_eq!(fake.names(), ["", "theirs"]);
    assert_eq!(fake.monitors(""), ["theirs "]);
    assert_eq!(fake.group("").cpus, cpus("0-15"));
    assert_eq!(given(&fake, &order(true, &[])).writes, 0);
}

#[test]
fn directories_that_their_owner_may_not_write_to_are_as_before_afterwards() {
    let fake = Resctrl::new();
    let modes = fake.0.borrow().modes.clone();
    assert_eq!(modes["/sys/fs/resctrl"], 0o555);
    given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "")]));
    assert_eq!((fake.names().len(), &fake.0.borrow().modes), (2, &modes));
    fake.0.borrow_mut().closids = 2;
    given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "silver")]));
    given(&fake, &order(true, &[]));
    assert_eq!((fake.names().len(), &fake.0.borrow().modes), (1, &modes));
}

#[test]
fn one_vm_ends_and_the_other_is_counted_on() {
    let fake = Resctrl::new();
    given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "gold")]));
    // The write of the class's CPUs empties its monitoring groups.
    let report = given(&fake, &order(true, &[("b", "4-5", "gold")]));
    assert_eq!(fake.monitors("stelia-gold"), ["stelia-b 4-5"]);
    assert_eq!((texts(&report).len(), report.writes), (0, 3));
}

#[test]
fn a_vm_moves_to_another_class_and_its_old_group_goes() {
    let fake = Resctrl::new();
    // No RMID is left over: the old groups go first.
    fake.0.borrow_mut().rmids = 3;
    given(&fake, &order(true, &[("a", "2-3", "gold")]));
    let report = given(&fake, &order(true, &[("a", "6-7", "silver")]));
    assert_eq!(
        (texts(&report), fake.names()),
        (vec![], vec![String::new(), "stelia-silver".into()])
    );
    let silver = fake.group("stelia-silver");
    assert_eq!((silver.masks[&0], silver.cpus), (0x070, cpus("6-7")));
    assert_eq!(fake.monitors("stelia-silver"), ["stelia-a 6-7"]);
    given(&fake, &order(true, &[("a", "6-7", "")]));
    assert_eq!(fake.monitors(""), ["stelia-a 6-7"]);
}

#[test]
fn used_up_closids_are_said_by_name_and_the_vm_stays_in_the_default_group() {
    let fake = Resctrl::new();
    fake.0.borrow_mut().closids = 2;
    let report = given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "silver")]));
    let (pod, text) = only(&report);
    assert_eq!(pod, "b");
    assert!(text.starts_with("cache class \"silver\": make /sys/"), "{text}");
    assert!(
        text.contains("(Out of CLOSIDs)") && text.ends_with("default group"),
        "{text}"
    );
    assert_eq!(fake.monitors(""), ["stelia-b 4-5"]);
    assert_eq!(
        (report.caches["a"].class.as_str(), report.caches["b"].class.as_str()),
        ("gold", "")
    );
}

#[test]
fn used_up_rmids_are_said_by_name_and_the_others_are_counted() {
    let fake = Resctrl::new();
    fake.0.borrow_mut().rmids = 2;
    let report = given(&fake, &order(true, &[("a", "2-3", ""), ("b", "4-5", "")]));
    let (pod, text) = only(&report);
    assert_eq!(pod, "b");
    assert!(text.starts_with("caches are not counted: make /sys/"), "{text}");
    assert!(text.contains("(Out of RMIDs)"), "{text}");
    assert_eq!(report.caches.keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_class_that_the_kernel_refuses_is_removed_again() {
    let fake = Resctrl::new();
    fake.0.borrow_mut().exclusive = 0x003;
    let report = given(&fake, &order(false, &[("a", "2-3", "gold"), ("b", "4-5", "silver")]));
    let (pod, text) = only(&report);
    assert_eq!(pod, "a");
    assert!(text.contains("to /sys/fs/resctrl/stelia-gold/schemata"), "{text}");
    assert!(text.contains("(Overlaps with exclusive group)"), "{text}");
    assert_eq!(fake.names(), ["", "stelia-silver"]);
    assert_eq!(fake.group("").cpus, cpus("0-3,6-15"));
}

#[test]
fn what_the_machine_cannot_do_is_known_before_a_group_is_made() {
    let fake = Resctrl::new();
    let mut wanted = order(false, &[("a", "2-3", "gold")]);
    wanted.cache_classes.insert(
        "gold".into(),
        CacheClass {
            l3_ways: Some(12),
            memory_bandwidth: None,
        },
    );
    let report = given(&fake, &wanted);
    assert!(texts(&report)[0].1.contains("L3 has 11 ways"), "{report:?}");
    assert_eq!(report.writes, 0);
    let fake = Resctrl::new();
    fake.0.borrow_mut().full_bandwidth = 2048;
    fake.0.borrow_mut().groups.get_mut("").unwrap().bandwidth = [(0, 2048), (1, 2048)].into();
    let report = given(&fake, &order(false, &[("a", "2-3", "gold")]));
    assert!(texts(&report)[0].1.contains("a group has 2048"), "{report:?}");
}

#[test]
fn cpus_in_another_programs_group_are_left_there() {
    let fake = Resctrl::new();
    fake.foreign("theirs");
    fake.write("/sys/fs/resctrl/theirs/cpus_list", "3-4").unwrap();
    fake.foreign("mon_groups/watch");
    fake.write("/sys/fs/resctrl/mon_groups/watch/cpus_list", "8").unwrap();
    let report = given(
        &fake,
        &order(true, &[("a", "2-3", "gold"), ("b", "8-9", ""), ("c", "12", "")]),
    );
    let said = texts(&report);
    assert!(said[0].1.contains("group \"theirs\""), "{said:?}");
    assert!(said[1].1.contains("group \"watch\""), "{said:?}");
    assert_eq!((said.len(), fake.group("theirs").cpus), (2, cpus("3-4")));
    assert_eq!(report.caches.keys().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn names_that_are_paths_make_no_groups() {
    let fake = Resctrl::new();
    let mut wanted = order(true, &[("../x", "2-3", ""), ("b", "4-5", "a/b"), ("c", "6", "bronze")]);
    wanted.cache_classes.insert("a/b".into(), CacheClass::default());
    let report = given(&fake, &wanted);
    let said = texts(&report);
    assert_eq!(
        (said[0].0, said[1].0, said[2].0, said.len()),
        ("../x", "b", "c", 3),
        "{said:?}"
    );
    assert_eq!(fake.names(), [""]);
    assert_eq!(
        fake.monitors("").len(),
        2,
        "those with a class that is not there are counted"
    );
}

#[test]
fn a_counter_that_is_not_available_is_no_number() {
    let fake = Resctrl::new();
    let words = [
        ("stelia-a/mon_data/mon_L3_00/llc_occupancy", "Unavailable"),
        ("stelia-b/mon_data/mon_L3_01/mbm_total_bytes", "Error"),
        ("stelia-b/mon_data/mon_L3_00/llc_occupancy", "Unavailable"),
    ];
    let words = words.map(|(path, word)| (path.to_owned(), word.to_owned()));
    fake.0.borrow_mut().words = words.into();
    let report = given(
        &fake,
        &order(true, &[("a", "2-3", ""), ("b", "8-9", ""), ("c", "7,10", "")]),
    );
    let of = |pod: &str| (report.caches[pod].llc_bytes, report.caches[pod].memory_bytes);
    assert_eq!(of("a"), (None, Some(1_000_000)));
    assert_eq!(
        of("b"),
        (Some(4096), None),
        "a cache that the VM has no CPUs at does not matter"
    );
    assert_eq!(of("c"), (Some(8192), Some(2_000_000)));
}

#[test]
fn without_resctrl_there_is_one_problem_and_only_where_it_is_asked_for() {
    let fake = Resctrl::new();
    fake.0.borrow_mut().mounted = false;
    assert_eq!(given(&fake, &order(false, &[("a", "2-3", "")])), Report::default());
    let report = given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "gold")]));
    let (pod, text) = only(&report);
    assert!(pod.is_empty() && text.contains("not mounted"), "{text}");
}

#[test]
fn hardware_that_counts_nothing_is_said_once_and_classes_work() {
    let fake = Resctrl::new();
    fake.0.borrow_mut().counts = false;
    let report = given(&fake, &order(true, &[("a", "2-3", "gold"), ("b", "4-5", "")]));
    let (pod, text) = only(&report);
    assert!(pod.is_empty() && text.contains("has no mon_groups"), "{text}");
    assert_eq!((report.caches["a"].llc_bytes, report.caches.len()), (None, 1));
    assert_eq!(fake.group("stelia-gold").cpus, cpus("2-3"));
}

#[test]
fn cpus_that_are_offline_are_left_out() {
    let fake = Resctrl::new();
    let report = given(&fake, &order(true, &[("a", "14-17", "gold"), ("b", "20", "")]));
    assert_eq!(texts(&report), []);
    assert_eq!(fake.monitors("stelia-gold"), ["stelia-a 14-15"]);
}

#[test]
fn of_many_vms_only_the_one_that_changes_is_written_to() {
    let fake = Resctrl::new();
    fake.0.borrow_mut().rmids = 200;
    let names: Vec<String> = (0..14).map(|index| format!("pod-{index}")).collect();
    let lists: Vec<String> = (0..14).map(|index| (index + 1).to_string()).collect();
    let vms: Vec<(&str, &str, &str)> = names
        .iter()
        .zip(&lists)
        .enumerate()
        .map(|(index, (name, list))| (name.as_str(), list.as_str(), ["gold", "silver", ""][index % 3]))
        .collect();
    assert_eq!(texts(&given(&fake, &order(true, &vms))), []);
    assert_eq!(given(&fake, &order(true, &vms)).writes, 0);
    let before: Vec<String> = fake.0.borrow().writes.clone();
    // One ends that is in the default group: only its own group is written to.
    let rest: Vec<_> = vms.iter().copied().filter(|(name, ..)| *name != "pod-2").collect();
    assert_eq!(given(&fake, &order(true, &rest)).writes, 1);
    assert_eq!(
        fake.0.borrow().writes[before.len()..],
        ["/sys/fs/resctrl/mon_groups/stelia-pod-2"]
    );
}
