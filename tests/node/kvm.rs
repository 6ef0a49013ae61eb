//! Under KVM: a guest that is a system of its own finds its siblings and NUMA nodes on the host's.

use crate::support::*;

/// Guest siblings sit on host siblings, the guest's NUMA nodes on NUMA nodes of the host's.
fn assert_placed_like_the_guest(pod: &Pod) {
    let guest = topology(pod);
    let seats = seats(pod);
    assert_eq!(guest.len(), 4, "{guest:?}");
    for (vcpu, seen) in &guest {
        assert_eq!(seen.siblings.len(), 2, "the guest sees no threads: {guest:?}");
        let host = host_cpu(seats[vcpu]);
        let siblings: Vec<u32> = seen.siblings.iter().map(|sibling| seats[sibling]).collect();
        let are_siblings = siblings.iter().all(|cpu| host.siblings.contains(cpu));
        assert!(are_siblings, "vCPU {vcpu}: {seats:?}, {guest:?}");
    }
    for (one, seen) in &guest {
        for (other, as_well) in &guest {
            let nodes = [one, other].map(|vcpu| host_cpu(seats[vcpu]).node);
            let (is_one_node, is_one_here) = (seen.node == as_well.node, nodes[0] == nodes[1]);
            assert_eq!(is_one_node, is_one_here, "vCPUs {one} and {other}: {seats:?}");
        }
    }
}

#[test]
fn a_guest_that_is_a_system_finds_its_siblings_and_nodes_on_the_hosts() {
    on_kvm_node(|| {
        // A core of each NUMA node.
        let (options, runner) = (["--cpuset", "2-5"], ["--qmp", "/run/qmp"]);
        let pod = Pod::start_qemu(Accel::Kvm, "system", &options, &runner, &system()).running();
        let before = assert_isolated(&pod, 4);
        assert_placed_like_the_guest(&pod);
        let resized = pod.resize("--cpuset", "0-1,4-5");
        wait_until("isolated on other CPUs", || is_isolated(&resized, 4));
        let after = assert_isolated(&resized, 4);
        assert_eq!(after.identities(), before.identities());
        assert_placed_like_the_guest(&resized);
        let said = alive(&pod);
        wait_until("the guest works on", || alive(&pod) > said);
    });
}
