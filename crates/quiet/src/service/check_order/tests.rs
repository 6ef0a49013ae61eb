use std::collections::BTreeMap;

use super::*;
use crate::testing::{set, vm};

const ONE: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
const TWO: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

/// Two VMs on a node of 8 CPUs, and an order that fits.
fn good() -> (Order, OrderFacts) {
    let order = Order {
        steer: true,
        shared: set("0-1,6-7"),
        vms: [(ONE.to_owned(), vm("2-3")), (TWO.to_owned(), vm("4-5"))].into(),
        cache_classes: [("quiet".to_owned(), CacheClass::default())].into(),
        cache_monitoring: true,
    };
    let facts = OrderFacts {
        recorded: [(ONE.to_owned(), Ok(set("2-3"))), (TWO.to_owned(), Ok(set("4-5")))].into(),
        online: set("0-7"),
    };
    (order, facts)
}

/// What is wrong with the good order after this was done to it.
fn wrong(change: impl FnOnce(&mut Order)) -> String {
    let (mut order, facts) = good();
    change(&mut order);
    check(order, &facts).unwrap_err().to_string()
}

fn right(change: impl FnOnce(&mut Order)) {
    let (mut order, facts) = good();
    change(&mut order);
    let checked = check(order.clone(), &facts).unwrap();
    assert_eq!((checked.order, checked.left_out), (order, BTreeMap::new()));
}

/// Why the first VM is left out of the good order after this was done to it; the second is not.
fn left_out(change: impl FnOnce(&mut OrderedVm)) -> String {
    let (mut order, facts) = good();
    change(order.vms.get_mut(ONE).unwrap());
    order.shared = set("0-1");
    let checked = check(order, &facts).unwrap();
    assert_eq!(checked.order.vms.keys().collect::<Vec<_>>(), [TWO]);
    checked.left_out[ONE].clone()
}

fn of_one(change: impl FnOnce(&mut OrderedVm)) -> impl FnOnce(&mut Order) {
    |order| change(order.vms.get_mut(ONE).unwrap())
}

#[test]
fn an_order_of_recorded_cpus_is_right_and_so_is_one_of_nothing() {
    right(|_| {});
    assert_eq!(
        check(Order::default(), &OrderFacts::default()).unwrap().order,
        Order::default()
    );
    right(of_one(|vm| {
        vm.own_devices = ["0000:03:00.0".into(), "10000:e1:1f.7".into()].into();
        vm.latency = Some(Latency::Microseconds(20));
        vm.governor = Some("performance".into());
        vm.cache_class = Some("quiet".into());
    }));
}

#[test]
fn a_pod_without_a_live_instance_is_left_out_and_named() {
    let other = "aaaaaaaa-64a5-4f8d-8574-41363cbaf8e5";
    let (mut order, facts) = good();
    order.vms.insert(other.into(), vm("6"));
    order.shared = set("0-1");
    let checked = check(order, &facts).unwrap();
    assert_eq!(checked.order.vms.keys().collect::<Vec<_>>(), [TWO, ONE]);
    assert_eq!(checked.left_out[other], "it has no live instance");
    let text = wrong(|order| drop(order.vms.insert("../../x".into(), vm("6"))));
    assert_eq!(text, "\"../../x\" is not a pod's UID");
}

#[test]
fn cpus_that_are_not_its_own_are_left_out_be_they_nobodys_anothers_or_too_few() {
    for cpus in ["2-3,6", "2-5", "4-5", "2", ""] {
        let text = left_out(|one| one.cpus = set(cpus));
        let expected = format!("the CPUs {cpus} are ordered, 2-3 are recorded as its own");
        assert_eq!(text, expected);
    }
}

#[test]
fn a_damaged_record_leaves_its_own_vm_out_and_no_other() {
    let (order, mut facts) = good();
    facts.recorded.insert(ONE.into(), Err("schema 9".into()));
    let checked = check(order, &facts).unwrap();
    assert_eq!(checked.left_out, [(ONE.to_owned(), "schema 9".to_owned())].into());
    assert_eq!(checked.order.vms.keys().collect::<Vec<_>>(), [TWO]);
}

#[test]
fn cpus_that_two_records_have_are_one_vms() {
    let (mut order, mut facts) = good();
    order.vms.insert(TWO.into(), vm("3-4"));
    facts.recorded.insert(TWO.into(), Ok(set("3-4")));
    let checked = check(order, &facts).unwrap();
    // In the order of the pods' UIDs.
    assert_eq!(checked.left_out[ONE], "the CPUs 3 are another VM's too");
}

#[test]
fn shared_cpus_are_no_vms_and_those_that_went_offline_are_left_out() {
    assert_eq!(
        wrong(|order| order.shared = set("0-2,5")),
        "the shared CPUs 2,5 are VMs'"
    );
    let (mut order, facts) = good();
    order.shared = set("0,8-9");
    assert_eq!(check(order, &facts).unwrap().order.shared, set("0"));
}

#[test]
fn what_is_no_pci_address_is_refused() {
    let bad = [
        "",
        "0000:03:00",
        "0000:03:00.8",
        "0000:03:00.0/",
        "../0000:03:00.0",
        "0000:03:00:0",
        "000:03:00.0",
        "0000:3:00.0",
        "0000:03:00.00",
        "0000:0G:00.0",
        "0000:0A:00.0",
        "123456789:03:00.0",
        "0000.03.00:0",
    ];
    for device in bad {
        let text = wrong(of_one(|vm| vm.own_devices = [device.to_owned()].into()));
        assert_eq!(text, format!("pod {ONE}: {device:?} is not a PCI address"));
    }
}

#[test]
fn a_latency_of_nothing_is_refused() {
    let text = wrong(of_one(|vm| vm.latency = Some(Latency::Microseconds(0))));
    assert_eq!(text, format!("pod {ONE}: a latency of 0 µs would be no limit"));
}

#[test]
fn a_cache_class_is_of_the_order_and_its_name_and_values_are_possible() {
    let text = wrong(of_one(|vm| vm.cache_class = Some("loud".into())));
    assert_eq!(text, format!("pod {ONE}: the order has no cache class \"loud\""));
    for name in ["", "a/b", "a\nb", &"x".repeat(65)] {
        let text = wrong(|order| _ = order.cache_classes.insert(name.to_owned(), CacheClass::default()));
        assert!(text.ends_with("cannot be a cache class's name"), "{text}");
    }
    let class = |l3_ways, memory_bandwidth| CacheClass {
        l3_ways,
        memory_bandwidth,
    };
    for (value, text) in [
        (class(Some(0), None), "cache class quiet: 0 is not a number of ways"),
        (class(Some(2), Some(0)), "cache class quiet: 0 is not a percentage"),
        (class(None, Some(101)), "cache class quiet: 101 is not a percentage"),
    ] {
        assert_eq!(
            wrong(|order| _ = order.cache_classes.insert("quiet".into(), value)),
            text
        );
    }
}
