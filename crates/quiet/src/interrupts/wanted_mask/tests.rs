use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

fn set(text: &str) -> CpuSet {
    text.parse().expect("a list")
}

fn cpus(online: &str, exclusive: &str, shared: &str) -> Cpus {
    Cpus {
        online: set(online),
        exclusive: set(exclusive),
        shared: set(shared),
    }
}

fn saved(base: &str, ours: &[&str]) -> SavedMask {
    SavedMask {
        base: set(base),
        ours: ours.iter().map(|mask| set(mask)).collect(),
    }
}

static NONE: LazyLock<CpuSet> = LazyLock::new(CpuSet::new);

fn any() -> InterruptDevice<'static> {
    InterruptDevice {
        local: &NONE,
        own: None,
    }
}

#[test]
fn a_broad_base_stays_broad_without_the_cpus_of_vms() {
    let cpus = cpus("0-7", "2-3", "0-1");
    let near = InterruptDevice {
        local: &set("4-7"),
        own: None,
    };
    assert_eq!(cpus.wanted(&set("0-7"), near), set("0-1,4-7"));
}

#[test]
fn a_base_that_has_nothing_else_goes_to_the_shared_cpus_of_its_node() {
    let cpus = cpus("0-7", "2-3", "0-1,6-7");
    assert_eq!(
        cpus.wanted(
            &set("2"),
            InterruptDevice {
                local: &set("4-7"),
                own: None
            }
        ),
        set("6-7")
    );
    assert_eq!(
        cpus.wanted(
            &set("2"),
            InterruptDevice {
                local: &set("2-3"),
                own: None
            }
        ),
        set("0-1,6-7")
    );
    assert_eq!(cpus.wanted(&set("2"), any()), set("0-1,6-7"));
}

#[test]
fn an_offline_cpu_alone_is_no_place() {
    let cpus = cpus("0-4", "2", "0-1,5");
    assert_eq!(
        cpus.wanted(&set("2,5"), any()),
        set("0-1"),
        "the kernel refuses 5 alone"
    );
    assert_eq!(
        cpus.wanted(&set("4-5"), any()),
        set("4-5"),
        "and takes it beside others"
    );
}

#[test]
fn where_there_is_nothing_else_an_interrupt_stays() {
    assert_eq!(cpus("0-1", "0-1", "").wanted(&set("1"), any()), set("1"));
    assert_eq!(cpus("0-1", "0-1", "").wanted(&set("7"), any()), set("0-1"));
}

#[test]
fn a_vms_own_device_gets_its_cpus_while_one_is_online() {
    let own = set("2-3");
    let device = InterruptDevice {
        local: &CpuSet::new(),
        own: Some(&own),
    };
    assert_eq!(cpus("0-7", "2-5", "0-1").wanted(&set("0-7"), device), own);
    assert_eq!(
        cpus("0-1,4-7", "2-5", "0-1").wanted(&set("0-7"), device),
        set("0-1,6-7")
    );
}

#[test]
fn what_somebody_else_wrote_stays_if_it_keeps_off() {
    // given
    let cpus = cpus("0-7", "2-3", "0-1,4-7");
    let before = saved("0-7", &["0-1,4-7"]);
    // then: a good place is theirs from now on, a bad one is repaired, and the base is what it was
    let good = cpus.decide(Some(&before), &set("5"), any(), None);
    assert_eq!(
        good,
        Decision {
            saved: saved("5", &[]),
            wanted: set("5")
        }
    );
    let bad = cpus.decide(Some(&before), &set("2"), any(), None);
    assert_eq!(
        bad,
        Decision {
            saved: before.clone(),
            wanted: set("0-1,4-7")
        }
    );
}

#[test]
fn what_the_kernel_widened_at_hotplug_is_not_somebodys_choice() {
    // given: ours was CPU 4 alone, which is offline now, as are the VM's
    let cpus = cpus("0-1,5-7", "2-3", "0-1,4-7");
    let decision = cpus.decide(Some(&saved("2,4", &["4"])), &set("0-1,5-7"), any(), None);
    assert_eq!(decision.saved.base, set("2,4"));
}

#[test]
fn a_program_that_changes_bits_of_the_default_does_not_take_a_vms_cpus_from_the_base() {
    // given: CRI-O takes CPU 7 out of what it finds
    let cpus = cpus("0-7", "2-3", "0-1,4-7");
    let decision = cpus.decide_default(Some(&saved("0-7", &["0-1,4-7"])), &set("0-1,4-6"));
    // then
    assert_eq!(
        decision,
        Decision {
            saved: saved("0-6", &["0-1,4-6"]),
            wanted: set("0-1,4-6")
        }
    );
}

#[test]
fn one_born_with_our_default_has_the_base_it_would_have_without_us() {
    // given
    let cpus = cpus("0-7", "2-3", "0-1,4-7");
    let default = saved("0-7", &["0-1,4-7"]);
    // then: ours, narrowed to the node as the kernel does; another mask is the driver's own
    let near = set("0-3");
    let born = cpus.decide(
        None,
        &set("0-1"),
        InterruptDevice {
            local: &near,
            own: None,
        },
        Some(&default),
    );
    assert_eq!(
        born,
        Decision {
            saved: saved("0-3", &["0-1"]),
            wanted: set("0-1")
        }
    );
    let own = cpus.decide(None, &set("4"), any(), Some(&default));
    assert_eq!(own.saved, saved("4", &[]));
}

#[test]
fn alternatives_are_bounded_differ_by_interrupt_and_keep_off() {
    let cpus = cpus("0-31", "2-3", "0-1,4-31");
    let near = set("16-31");
    let device = InterruptDevice {
        local: &near,
        own: None,
    };
    let one = cpus.alternatives(24, &set("0"), device);
    let other = cpus.alternatives(25, &set("0"), device);
    assert_eq!(one.len(), MAX_ALTERNATIVES);
    assert_eq!(one[0], near, "the node first");
    assert_ne!(one, other);
    assert!(
        one.iter()
            .all(|mask| mask.is_disjoint(&cpus.exclusive) && !mask.is_empty())
    );
}

fn some_cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::btree_set(0u32..12, 0..12).prop_map(CpuSet::from_iter)
}

prop_compose! {
    fn node()(online in some_cpus(), exclusive in some_cpus(), shared in some_cpus()) -> Cpus {
        let shared = shared.difference(&exclusive);
        Cpus { online: online.union(&set("0")), exclusive, shared }
    }
}

proptest! {
    #[test]
    fn the_kernel_takes_what_is_wanted_and_it_keeps_off(
        cpus in node(), base in some_cpus(), local in some_cpus(), own in proptest::option::of(some_cpus()),
    ) {
        let device = InterruptDevice { local: &local, own: own.as_ref() };
        let wanted = cpus.wanted(&base, device);
        prop_assert!(!wanted.is_disjoint(&cpus.online));
        let nothing_else = cpus.online.is_subset(&cpus.exclusive);
        let is_own = own.as_ref() == Some(&wanted);
        prop_assert!(wanted.is_disjoint(&cpus.exclusive) || nothing_else || is_own);
    }

    #[test]
    fn the_second_round_writes_nothing_and_keeps_the_same(
        cpus in node(), found in some_cpus(), local in some_cpus(), before in proptest::option::of((some_cpus(), some_cpus())),
    ) {
        let device = InterruptDevice { local: &local, own: None };
        let before = before.map(|(base, ours)| SavedMask { base, ours: vec![ours] });
        let first = cpus.decide(before.as_ref(), &found, device, None);
        let second = cpus.decide(Some(&first.saved), &first.wanted, device, None);
        prop_assert_eq!(&second.wanted, &first.wanted);
        prop_assert_eq!(&second.saved.base, &first.saved.base);
        let third = cpus.decide(Some(&second.saved), &second.wanted, device, None);
        prop_assert_eq!(third, second);
    }

    #[test]
    fn whatever_vms_come_and_go_without_them_the_base_is_back(
        base in some_cpus(), local in some_cpus(), rounds in proptest::collection::vec((some_cpus(), some_cpus()), 1..6),
    ) {
        let online = CpuSet::below(12);
        let base = base.union(&set("3"));
        let device = InterruptDevice { local: &local, own: None };
        let (mut mask, mut saved) = (base.clone(), None);
        for (exclusive, shared) in rounds.into_iter().chain([(CpuSet::new(), CpuSet::new())]) {
            let cpus = Cpus { online: online.clone(), shared: shared.difference(&exclusive), exclusive };
            let decision = cpus.decide(saved.as_ref(), &mask, device, None);
            mask = decision.wanted;
            saved = Some(decision.saved);
        }
        prop_assert_eq!(mask, base);
    }

    #[test]
    fn what_may_be_ours_is_kept_before_it_is_written(cpus in node(), found in some_cpus(), ours in some_cpus()) {
        let before = SavedMask { base: CpuSet::below(12), ours: vec![ours.clone()] };
        let decision = cpus.decide(Some(&before), &found, any(), None);
        let known = |mask: &CpuSet| *mask == decision.saved.base || decision.saved.ours.contains(mask);
        prop_assert!(known(&decision.wanted));
        prop_assert!(found != ours || known(&found), "a crash may come before the write");
    }
}

#[test]
fn an_interrupt_belongs_to_the_vm_that_has_its_device_while_interrupts_are_steered() {
    let vm = OrderedVm {
        cpus: set("2"),
        own_devices: ["0000:3b:00.0".into()].into(),
        ..OrderedVm::default()
    };
    let mut order = Order {
        steer: true,
        vms: BTreeMap::from([("a".into(), vm)]),
        ..Order::default()
    };
    let pod = |order: &Order, address| owner(order, address).map(|(pod, _)| pod.to_owned());
    assert_eq!(pod(&order, Some("0000:3b:00.0")).as_deref(), Some("a"));
    assert_eq!(pod(&order, Some("0000:3b:00.1")), None);
    assert_eq!(pod(&order, None), None);
    order.steer = false;
    assert_eq!(pod(&order, Some("0000:3b:00.0")), None);
}
