//! Computes the order for `steliad-quiet` from the engine's view and the settings. Pure.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::{CacheLimits, IrqSteering, LatencyLevel, QuietSettings};
use steliad_quiet::order::{CacheClass, Latency, Order, OrderedVm};

/// The order for every instance that has CPUs, from its registration on, so that it is carried out before the guest runs. `own_devices`: by
/// pod, the VFIO devices whose interrupts go to the instance's own CPUs.
pub(super) fn order_for(
    view: &model::Node,
    settings: &QuietSettings,
    own_devices: &BTreeMap<PodUid, BTreeSet<String>>,
) -> Order {
    let with_cpus = view
        .instances
        .iter()
        .filter(|(_, instance)| !instance.exclusive.is_empty());
    let vms = with_cpus.map(|(pod, instance)| {
        let vm = OrderedVm {
            cpus: instance.exclusive.clone(),
            own_devices: own_devices.get(pod).cloned().unwrap_or_default(),
            // The administrator may have lowered the limit since the VM was registered.
            latency: latency(
                instance.quiet.latency.min(settings.latency_allowed),
                settings.latency_low_us,
            ),
            governor: settings.cpu_governor.clone(),
            // The administrator may have removed the class since, and an order with an unknown class is refused.
            cache_class: instance
                .quiet
                .cache_class
                .clone()
                .filter(|class| settings.cache_classes.contains_key(class)),
        };
        (pod.to_string(), vm)
    });
    let steer = settings.irq_steering == IrqSteering::Shared;
    // An instance for which nothing is to be done is left out. An order without instances undoes all changes.
    let needs_order = |vm: &OrderedVm| steer || settings.cache_monitoring || vm.has_order();
    let vms: BTreeMap<String, OrderedVm> = vms.filter(|(_, vm)| needs_order(vm)).collect();
    let exclusive: CpuSet = vms.values().flat_map(|vm| vm.cpus.iter()).collect();
    let online = view.topology.online();
    let free = online.difference(&exclusive);
    // If kubelet's file cannot be used: the CPUs that neither a VM nor a container of kubelet has.
    let unassigned = || free.difference(&view.kubelet_cpus);
    let pool = view
        .pool
        .as_ref()
        .map_or_else(unassigned, |pool| pool.intersection(&free));
    Order {
        steer,
        shared: if pool.is_empty() { free } else { pool },
        vms,
        cache_classes: settings.cache_classes.iter().map(class).collect(),
        cache_monitoring: settings.cache_monitoring,
    }
}

fn latency(level: LatencyLevel, low_us: u32) -> Option<Latency> {
    match level {
        LatencyLevel::Default => None,
        LatencyLevel::Low => Some(Latency::Microseconds(low_us)),
        LatencyLevel::Polling => Some(Latency::Polling),
    }
}

fn class((name, limits): (&String, &CacheLimits)) -> (String, CacheClass) {
    let class = CacheClass {
        l3_ways: limits.l3_ways,
        memory_bandwidth: limits.memory_bandwidth,
    };
    (name.clone(), class)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stelia_cpus::testing::Shape;
    use stelia_kernel::vfio;

    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// Eight CPUs, of which 0-1 are shared, and VMs with these.
    fn view(vms: &[(u32, &str)]) -> model::Node {
        let instances = vms.iter().map(|(number, cpus)| {
            let known = model::Instance {
                exclusive: set(cpus),
                ..crate::engine::registered(pod(*number))
            };
            (pod(*number), Arc::new(known))
        });
        let shape = Shape {
            nodes: 2,
            cores: 4,
            threads: 1,
            interleaved: false,
        };
        model::Node {
            pool: Some(set("0-1,6")),
            kubelet_cpus: set("2-5"),
            topology: Arc::new(shape.topology()),
            instances: instances.collect(),
            ..model::Node::default()
        }
    }

    fn order(view: &model::Node) -> Order {
        order_for(view, &QuietSettings::default(), &BTreeMap::new())
    }

    #[test]
    fn each_instance_with_cpus_is_named_and_the_pool_is_what_they_leave() {
        let order = order(&view(&[(1, "2-3"), (2, ""), (3, "6")]));
        assert!(order.steer);
        let named: Vec<String> = order.vms.keys().cloned().collect();
        assert_eq!(named, [pod(1).to_string(), pod(3).to_string()]);
        assert_eq!(order.shared, set("0-1"));
    }

    #[test]
    fn a_recorded_cache_class_that_the_node_does_not_have_is_not_ordered() {
        let mut view = view(&[(1, "2-3"), (3, "6")]);
        let mut known = (*view.instances[&pod(1)]).clone();
        known.quiet.cache_class = Some("gold".into());
        view.instances.insert(pod(1), Arc::new(known));
        let order = order(&view);
        assert_eq!(order.vms.len(), 2);
        assert!(order.vms.values().all(|vm| vm.cache_class.is_none()), "{order:?}");
    }

    #[test]
    fn without_kubelets_file_the_shared_cpus_are_those_that_nobody_was_given() {
        let mut view = view(&[(1, "2-3")]);
        view.pool = None;
        assert_eq!(order(&view).shared, set("0-1,6-7"));
        view.pool = Some(CpuSet::new());
        assert_eq!(order(&view).shared, set("0-1,4-7"), "no shared CPU at all");
    }

    #[test]
    fn off_steers_nothing() {
        let off = QuietSettings {
            irq_steering: IrqSteering::Off,
            ..QuietSettings::default()
        };
        assert!(!order_for(&view(&[(1, "2-3")]), &off, &BTreeMap::new()).steer);
    }

    #[test]
    fn a_device_that_two_containers_have_is_no_vms_own() {
        let devices = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let found = [(pod(1), devices(&["a", "b"])), (pod(2), devices(&["b"]))];
        assert_eq!(vfio::without_shared(found.into()), [(pod(1), devices(&["a"]))].into());
    }
}
