use crate::order::{CacheClass, Latency};

use super::*;
use crate::service::check_order::check;
use crate::testing::{set, vm as plain};

const ONE: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
const TWO: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

fn vm(cpus: &str) -> OrderedVm {
    OrderedVm {
        latency: Some(Latency::Microseconds(20)),
        cache_class: Some("quiet".to_owned()),
        ..plain(cpus)
    }
}

/// An order for one VM on these CPUs, and another one on 6.
fn order(cpus: &str) -> Order {
    Order {
        steer: true,
        shared: set("0-1"),
        vms: [(ONE.to_owned(), vm(cpus)), (TWO.to_owned(), vm("6"))].into(),
        cache_classes: [("quiet".to_owned(), CacheClass::default())].into(),
        ..Order::default()
    }
}

fn facts(recorded: Option<Result<&str, &str>>) -> OrderFacts {
    let one = recorded.map(|recorded| recorded.map(set).map_err(str::to_owned));
    let one = one.map(|recorded| (ONE.to_owned(), recorded));
    let two = (TWO.to_owned(), Ok(set("6")));
    OrderFacts {
        recorded: one.into_iter().chain([two]).collect(),
        online: set("0-7"),
    }
}

/// What is carried out for the first VM, after it had 2-5.
fn carried_out(order: Order, facts: &OrderFacts) -> (Option<OrderedVm>, String) {
    let before = InForce::of(&self::order("2-5"));
    let mut checked = check(order, facts).unwrap();
    before.retain(&mut checked, facts);
    assert_eq!(checked.order.vms[TWO], vm("6"));
    let text = checked.left_out.get(ONE).cloned().unwrap_or_default();
    (checked.order.vms.get(ONE).cloned(), text)
}

#[test]
fn what_is_in_force_stays_where_order_and_record_differ() {
    // A resize is on its way: the record is ahead of the order, or behind it.
    for (ordered, recorded, stays) in [
        ("2-5", "2-3", "2-3"),
        ("2-3", "2-5", "2-5"),
        ("2-5", "2-5,7", "2-5"),
        ("2-3", "3-5,7", "3-5"),
    ] {
        let (kept, text) = carried_out(order(ordered), &facts(Some(Ok(recorded))));
        let expected = if ordered == recorded { vm(ordered) } else { vm(stays) };
        assert_eq!(kept, Some(expected), "{ordered} {recorded}");
        assert!(text.contains(&format!("on CPUs {stays} stays")), "{text}");
    }
    // The record cannot be read.
    let (kept, text) = carried_out(order("2-5"), &facts(Some(Err("schema 9"))));
    assert_eq!(kept, Some(vm("2-5")));
    assert!(text.starts_with("schema 9; "), "{text}");
    // CPUs that are shared by now are kept for nobody.
    let mut shrunk = order("2-3");
    shrunk.shared = set("0-1,4-5");
    assert_eq!(carried_out(shrunk, &facts(Some(Err("schema 9")))).0, Some(vm("2-3")));
}

#[test]
fn what_is_clear_is_carried_out() {
    // It ended; it has none of those CPUs any more; it is not ordered any more.
    assert_eq!(carried_out(order("2-5"), &facts(None)).0, None);
    assert_eq!(carried_out(order("2-5"), &facts(Some(Ok("7")))).0, None);
    let mut without = order("2-5");
    without.vms.remove(ONE);
    assert_eq!(carried_out(without, &facts(Some(Ok("2-5")))).0, None);
    assert_eq!(
        carried_out(order("2-4"), &facts(Some(Ok("2-4")))),
        (Some(vm("2-4")), String::new())
    );
}

#[test]
fn nothing_is_kept_on_cpus_that_another_vm_has_by_now_and_a_class_that_is_gone_is_kept_with_it() {
    let mut order = order("2-5");
    order.vms.insert(TWO.to_owned(), vm("4-6"));
    let mut facts = facts(Some(Err("unreadable")));
    facts.recorded.insert(TWO.to_owned(), Ok(set("4-6")));
    let before = InForce::of(&self::order("2-5"));
    let mut checked = check(order, &facts).unwrap();
    checked.order.cache_classes.clear();
    before.retain(&mut checked, &facts);
    assert_eq!(checked.order.vms[ONE].cpus, set("2-3"));
    assert!(checked.order.cache_classes.contains_key("quiet"));
    assert!(checked.order.shared.is_disjoint(&set("2-6")));
}
