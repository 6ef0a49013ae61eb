use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::testing::{set, vm};

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

fn near(local: &CpuSet) -> InterruptDevice<'_> {
    InterruptDevice { local, own: None }
}

#[test]
fn an_interrupt_gets_its_base_without_vms_or_else_the_shared_cpus() {
    for (online, exclusive, shared, base, local, expected) in [
        // Nothing else is in the base: the shared CPUs of the node, or all of them.
        ("0-7", "2-3", "0-1,6-7", "2", "4-7", "6-7"),
        ("0-7", "2-3", "0-1,6-7", "2", "2-3", "0-1,6-7"),
        ("0-7", "2-3", "0-1,6-7", "2", "", "0-1,6-7"),
        // The kernel refuses an offline CPU alone, and takes it beside others.
        ("0-4", "2", "0-1,5", "2,5", "", "0-1"),
        ("0-4", "2", "0-1,5", "4-5", "", "4-5"),
        // There is no other CPU.
        ("0-1", "0-1", "", "1", "", "1"),
        ("0-1", "0-1", "", "7", "", "0-1"),
    ] {
        let local = set(local);
        let wanted = cpus(online, exclusive, shared).wanted(&set(base), near(&local));
        assert_eq!(wanted, set(expected), "{base} of {online}");
    }
}

#[test]
fn a_program_that_changes_bits_of_the_default_does_not_take_a_vms_cpus_from_the_base() {
    // given: CRI-O takes CPU 7 out of what it finds
    let cpus = cpus("0-7", "2-3", "0-1,4-7");
    let decision = cpus.decide_default(Some(&saved("0-7", &["0-1,4-7"])), &set("0-1,4-6"));
    assert_eq!(
        decision,
        Decision {
            saved: saved("0-6", &["0-1,4-6"]),
            wanted: set("0-1,4-6")
        }
    );
}

#[test]
fn alternatives_are_bounded_differ_by_interrupt_and_keep_off() {
    let cpus = cpus("0-31", "2-3", "0-1,4-31");
    let local = set("16-31");
    let device = near(&local);
    let one = cpus.alternatives(24, &set("0"), device);
    let other = cpus.alternatives(25, &set("0"), device);
    assert_eq!(one.len(), MAX_ALTERNATIVES);
    assert_eq!(one[0], local, "the node first");
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
        let device = near(&local);
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
        let device = near(&local);
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
        let decision = cpus.decide(Some(&before), &found, near(&NONE), None);
        let known = |mask: &CpuSet| *mask == decision.saved.base || decision.saved.ours.contains(mask);
        prop_assert!(known(&decision.wanted));
        prop_assert!(found != ours || known(&found), "a crash may come before the write");
    }
}

#[test]
fn an_interrupt_belongs_to_the_vm_that_has_its_device_while_interrupts_are_steered() {
    let mut vm = vm("2");
    vm.own_devices = ["0000:3b:00.0".into()].into();
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
