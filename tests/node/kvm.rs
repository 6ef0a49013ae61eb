//! Under KVM: the threads that only KVM and vhost make, a plugged vCPU, and a guest that is a system of its own. What each
//! thread is and where it ends is the table in docs/runner.md.

use crate::support::linux_guest::{host_cpu, system, topology};
use crate::support::*;

#[test]
fn the_threads_that_kvm_and_vhost_make_are_off_the_vcpus_cpus() {
    needs_kvm();
    let remove_tap = || drop(output("ip link del stelia-tap0"));
    on_node_undoing(remove_tap, || {
        for module in ["vhost_net", "vhost_vsock", "tun"] {
            run(&["modprobe", module]);
        }
        run("ip tuntap add stelia-tap0 mode tap vnet_hdr");
        let counted = counters();
        let devices = ["/dev/vhost-net", "/dev/vhost-vsock", "/dev/net/tun"];
        let devices = devices.iter().flat_map(|device| ["--device", device]);
        let options: Vec<&str> = ["--cpus", "2", "--cap", "NET_ADMIN"]
            .into_iter()
            .chain(devices)
            .collect();
        let card = "-netdev tap,id=net,ifname=stelia-tap0,script=no,downscript=no,vhost=on -device virtio-net-pci,netdev=net,romfile=";
        let qemu = [words("-smp 2 -device vhost-vsock-pci,guest-cid=42"), words(card)].concat();
        let pod = Pod::start_qemu(Accel::Kvm, "vhost", &options, &["--qmp", "/run/qmp"], &qemu).running();
        let threads = assert_isolated(&pod, 2);
        assert_eq!(
            threads.named("vhost-").len(),
            2,
            "vhost-net's and vhost-vsock's: {threads:#?}"
        );
        assert_eq!(threads.named("kvm-nx-lpage").len(), 1);
        // It was moved, and nobody is blamed for it.
        assert_eq!(counters(), counted);
        // The emulated timer's, which the kernel makes for itself: bound to nobody, and no task of the container's.
        // Its name ends with QEMU's number in the container.
        let pit = processes_named("kvm-pit/").into_iter().next().expect("kvm-pit");
        println!(
            "  {} is in {} and may run on {}",
            pit.name,
            pit.cgroup.display(),
            pit.allowed
        );
        assert!(!pit.cgroup.starts_with(pod.scope()), "{pit:?}");
        println!("  {:?}", threads.others.iter().map(|one| &one.name).collect::<Vec<_>>());
    });
}

#[test]
fn virtiofsd_beside_a_guest_with_shared_memory_floats() {
    needs_kvm();
    on_node(|| {
        let helper = "name=fs,wait-for=/run/fs,command=/usr/libexec/virtiofsd --socket-path=/run/fs --shared-dir /usr/share --sandbox none";
        let qemu = [&["-smp", "2"][..], &with_virtiofsd()].concat();
        let pod = start_on(Accel::Kvm, "shared", "2", &["--helper", helper], &qemu).running();
        let threads = assert_isolated(&pod, 2);
        threads.one("virtiofsd");
        println!("  {:?}", threads.others.iter().map(|one| &one.name).collect::<Vec<_>>());
    });
}

#[test]
fn a_vcpu_plugged_under_kvm_gets_its_cpu() {
    needs_kvm();
    on_node(|| {
        let qemu = [&["-smp", "1,sockets=2,maxcpus=2"], &OTHER[..]].concat();
        let pod = start_on(Accel::Kvm, "plugged", "2", &[], &qemu).running();
        let before = assert_isolated(&pod, 1);
        plug_vcpu(&pod, "host");
        wait_until("the second vCPU is pinned", || is_isolated(&pod, 2));
        let after = assert_isolated(&pod, 2);
        assert_eq!(after.vcpus.first(), before.vcpus.first());
        assert_eq!(after.vcpus[1].name, "CPU 1/KVM");
    });
}

/// Guest siblings sit on host siblings, the guest's NUMA nodes on NUMA nodes of the host's.
fn assert_placed_like_the_guest(pod: &Pod) {
    let guest = topology(pod);
    let seats = seats(pod);
    assert_eq!(guest.len(), 4, "{guest:?}");
    for (vcpu, seen) in &guest {
        assert_eq!(seen.siblings.len(), 2, "the guest sees no threads: {guest:?}");
        let host = host_cpu(seats[vcpu]);
        let siblings: Vec<u32> = seen.siblings.iter().map(|sibling| seats[sibling]).collect();
        assert!(
            siblings.iter().all(|cpu| host.siblings.contains(cpu)),
            "vCPU {vcpu}: {seats:?}, {guest:?}"
        );
    }
    for (one, seen) in &guest {
        for (other, as_well) in &guest {
            let nodes = [one, other].map(|vcpu| host_cpu(seats[vcpu]).node);
            assert_eq!(
                seen.node == as_well.node,
                nodes[0] == nodes[1],
                "vCPUs {one} and {other}: {seats:?}"
            );
        }
    }
    println!("  guest {guest:?} on {seats:?}");
}

#[test]
fn a_guest_that_is_a_system_finds_its_siblings_and_nodes_on_the_hosts() {
    needs_kvm();
    on_node(|| {
        // A core of each NUMA node.
        let pod = Pod::start_qemu(
            Accel::Kvm,
            "system",
            &["--cpuset", "2-5"],
            &["--qmp", "/run/qmp"],
            &system(),
        )
        .running();
        let before = assert_isolated(&pod, 4);
        assert_placed_like_the_guest(&pod);
        let resized = pod.resize("--cpuset", "0-1,4-5");
        wait_until("isolated on other CPUs", || is_isolated(&resized, 4));
        let after = assert_isolated(&resized, 4);
        assert_eq!(after.identities(), before.identities());
        assert_placed_like_the_guest(&resized);
        let said = alive(&pod);
        wait_until("the guest works on", || alive(&pod) > said);
        let memory = pod.scope_file("memory.current");
        println!("  the VM's memory: {memory} bytes");
    });
}
