use std::collections::BTreeMap;

use super::*;

const ONE: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
const TWO: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn vm(cpus: &str) -> Vm {
    Vm {
        cpus: set(cpus),
        ..Vm::default()
    }
}

/// Two VMs on a node of 8 CPUs, and an order that fits.
fn good() -> (Order, Facts) {
    let order = Order {
        steer: true,
        shared: set("0-1,6-7"),
        vms: [(ONE.to_owned(), vm("2-3")), (TWO.to_owned(), vm("4-5"))].into(),
        cache_classes: [("quiet".to_owned(), CacheClass::default())].into(),
        cache_monitoring: true,
    };
    let facts = Facts {
        recorded: [(ONE.to_owned(), set("2-3")), (TWO.to_owned(), set("4-5"))].into(),
        online: set("0-7"),
        governors: BTreeMap::from([
            (2, "performance powersave \n".into()),
            (3, "performance powersave \n".into()),
        ]),
    };
    (order, facts)
}

/// What is wrong with the good order after this was done to it.
fn wrong(change: impl FnOnce(&mut Order)) -> String {
    let (mut order, facts) = good();
    change(&mut order);
    check(&order, &facts).unwrap_err().to_string()
}

fn right(change: impl FnOnce(&mut Order)) {
    let (mut order, facts) = good();
    change(&mut order);
    assert_eq!(check(&order, &facts), Ok(()));
}

fn of_one(change: impl FnOnce(&mut Vm)) -> impl FnOnce(&mut Order) {
    |order| change(order.vms.get_mut(ONE).unwrap())
}

#[test]
fn an_order_of_recorded_cpus_is_right_and_so_is_one_of_nothing() {
    right(|_| {});
    assert_eq!(check(&Order::default(), &Facts::default()), Ok(()));
    right(of_one(|vm| {
        vm.own_devices = ["0000:03:00.0".into(), "10000:e1:1f.7".into()].into();
        vm.latency = Some(Latency::Microseconds(20));
        vm.governor = Some("performance".into());
        vm.cache_class = Some("quiet".into());
    }));
}

#[test]
fn a_pod_without_a_live_instance_is_named() {
    let other = "aaaaaaaa-64a5-4f8d-8574-41363cbaf8e5";
    let text = wrong(|order| drop(order.vms.insert(other.into(), vm("6"))));
    assert_eq!(text, format!("pod {other} has no live instance"));
    let text = wrong(|order| drop(order.vms.insert("../../x".into(), vm("6"))));
    assert_eq!(text, "\"../../x\" is not a pod's UID");
}

#[test]
fn cpus_that_are_not_its_own_are_refused_be_they_nobodys_anothers_or_too_few() {
    for cpus in ["2-3,6", "2-5", "4-5", "2", ""] {
        let text = wrong(of_one(|one| one.cpus = set(cpus)));
        let expected = format!("pod {ONE}: the CPUs {cpus} are ordered, 2-3 are recorded as its own");
        assert_eq!(text, expected);
    }
}

#[test]
fn cpus_that_two_records_have_are_refused() {
    let (mut order, mut facts) = good();
    order.vms.insert(TWO.into(), vm("3-4"));
    facts.recorded.insert(TWO.into(), set("3-4"));
    let text = check(&order, &facts).unwrap_err().to_string();
    assert!(text.ends_with("the CPUs 3 are another VM's too"), "{text}");
}

#[test]
fn shared_cpus_are_online_and_no_vms() {
    assert_eq!(
        wrong(|order| order.shared = set("0-2,5")),
        "the shared CPUs 2,5 are VMs'"
    );
    assert_eq!(
        wrong(|order| order.shared = set("0,8-9")),
        "the shared CPUs 8-9 are not online"
    );
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
fn a_latency_of_nothing_and_a_governor_that_a_cpu_has_not_are_refused() {
    let text = wrong(of_one(|vm| vm.latency = Some(Latency::Microseconds(0))));
    assert_eq!(text, format!("pod {ONE}: a latency of 0 µs would be no limit"));
    for governor in ["userspace", "", "performance powersave"] {
        let text = wrong(of_one(|vm| vm.governor = Some(governor.into())));
        let expected = format!("pod {ONE}: CPU 2 has no governor {governor:?}, only \"performance powersave\"");
        assert_eq!(text, expected);
    }
    // No cpufreq there.
    let text = wrong(|order| order.vms.get_mut(TWO).unwrap().governor = Some("performance".into()));
    assert!(
        text.ends_with("CPU 4 has no governor \"performance\", only \"\""),
        "{text}"
    );
}

#[test]
fn a_cache_class_is_of_the_order_and_its_name_and_values_are_possible() {
    let text = wrong(of_one(|vm| vm.cache_class = Some("loud".into())));
    assert_eq!(text, format!("pod {ONE}: the order has no cache class \"loud\""));
    for name in ["", "..", "a/b", "a\nb", &"x".repeat(65)] {
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
