//! Instances in place, whose record is on their pod.

use super::*;

/// An instance in place whose vCPU runs on CPU 2, of a VM whose other threads run on CPU 3.
fn in_a_container() -> Record {
    let unit = format!("kubepods-pod{}.slice", POD.replace('-', "_"));
    let container = format!("/kubepods.slice/{unit}/cri-containerd-{}.scope", "a".repeat(64));
    Record {
        origin: CgroupPath::parse(&container).unwrap(),
        exclusive: set("2"),
        spare: set("3"),
        ..in_place()
    }
}

/// CPU 2 of the one VM is not to sleep deeply.
fn order_of_one_cpu() -> Order {
    let mut order = order();
    order.vms.get_mut(POD).unwrap().cpus = set("2");
    order
}

#[test]
fn an_instance_in_place_is_found_by_the_record_on_its_pod() {
    let mut node = Node::new();
    node.has_only(&in_a_container(), true);
    assert_eq!(node.left_out(&order_of_one_cpu()), None);
    // With crun the processes are one level below the container's cgroup.
    let mut crun = in_a_container();
    crun.origin = crun.origin.child("container");
    node.has_only(&crun, true);
    node.records.0.entry(crun.origin.clone()).or_default().1 = true;
    assert_eq!(node.left_out(&order_of_one_cpu()), None);
}

#[test]
fn what_a_container_writes_on_its_own_cgroup_is_not_read() {
    let mut node = Node::new();
    node.records = Records::default();
    let forged = in_a_container();
    let own = RecordPlace::on_scope(forged.origin.clone());
    node.records.put(&forged, &own);
    // As it would be called on the pod's cgroup.
    let named = RecordPlace::on_pod(&forged.origin);
    let attributes = forged.attributes().into_iter();
    let attributes = attributes.map(|(name, value)| (named.name(name), value));
    let container = node.records.0.get_mut(&forged.origin).unwrap();
    container.0.extend(attributes);
    container.1 = true;
    let pod = forged.origin.parent().unwrap();
    node.records.0.entry(pod).or_default();
    let none = Some("it has no live instance".to_owned());
    assert_eq!(node.left_out(&order_of_one_cpu()), none);
    node.unchanged();
    assert_eq!(exclusive(&node.records), Ok(CpuSet::new()));
}

#[test]
fn a_record_of_another_pod_or_container_is_no_record_of_this_one() {
    let of = in_a_container();
    let other_pod = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
    let other_pod = stelia_kubelet::PodUid::parse(other_pod).unwrap();
    let lies = [
        Record {
            pod: other_pod,
            ..of.clone()
        },
        Record {
            origin: CgroupPath::parse("/init.scope").unwrap(),
            ..of.clone()
        },
    ];
    for lie in lies {
        let mut node = Node::new();
        node.records = Records::default();
        node.records.put(&lie, Tree::of(&of).place());
        node.records.0.entry(of.origin.clone()).or_default().1 = true;
        let reason = node.left_out(&order_of_one_cpu()).unwrap();
        assert!(reason.contains("the record is of"), "{reason}");
        node.unchanged();
        assert_eq!(exclusive(&node.records), Ok(CpuSet::new()));
    }
}
