//! Where a VM's memory and devices are, by the kernel's own numbers, beside its CPUs.

use crate::support::*;
use crate::vfio::{held_and_remote, locality, settled_locality, shown_devices};

const PAGES: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";

/// A VM on these CPUs whose memory QEMU takes at once, with this backend.
fn vm_with(name: &str, cpus: &str, options: &[&str], mib: &str, backend: &str) -> Pod {
    let object = format!("{backend},id=ram,size={mib}M,prealloc=on");
    let options = [&["--cpuset", cpus], options].concat();
    let qemu = format!("-smp 2 -m {mib} -object {object} -machine memory-backend=ram");
    Pod::start_qemu(Accel::of_node(), name, &options, &["--qmp", "/run/qmp"], &words(&qemu))
}

/// The share that is away, once the daemon has looked since the VM took its memory.
fn share(pod: &Pod, at_least_mib: u64) -> f64 {
    let (held, remote) = held_and_remote(&settled_locality(pod, at_least_mib)).expect("memory");
    remote as f64 / held as f64
}

#[test]
fn half_a_vms_memory_on_the_other_node_is_told_and_a_well_placed_vm_is_not() {
    let give_back = || put(PAGES, "0");
    on_node_undoing(give_back, || {
        keep_huge_pages(PAGES, 64);
        let nic = ["--device-plugin", "vendor.com/nic=1:nic0"];
        // The CPUs 2-3 are of node 0, 4-7 of node 1.
        let half = "memory-backend-ram,host-nodes=0-1,policy=interleave";
        let half = vm_with("half", "2-3", &nic, "256", half);
        let near = "memory-backend-ram,host-nodes=1,policy=bind";
        let near = vm_with("near", "6-7", &nic, "256", near);
        let huge = "memory-backend-memfd,hugetlb=on,hugetlbsize=2M,host-nodes=0,policy=bind";
        let huge = vm_with("huge", "4-5", &["--hugepages", "2MB=160M"], "128", huge);
        for pod in [&half, &near, &huge] {
            pod.wait_running();
            assert_isolated(pod, 2);
        }

        let (of_half, of_near, of_huge) = (share(&half, 256), share(&near, 256), share(&huge, 128));
        assert!((0.4..0.6).contains(&of_half), "{of_half}");
        assert!(of_near < 0.25, "{of_near}");
        assert!(of_huge > 0.6, "{of_huge}");

        for (pod, share) in [(&half, of_half), (&huge, of_huge)] {
            let (whole, text) = pod.verified();
            let told = format!("{:.0} % (", share * 100.0);
            assert!(!whole, "{told}: {text}");
            assert_says(&text, &[&told, &format!("default/{}", pod.name)]);
        }
        wait_until("nothing to say of the other one", || near.verified().0);

        let devices = |pod: &Pod| shown_devices(&locality(pod));
        let told = |node, own| vec![("vendor.com/nic".to_owned(), node, own)];
        assert_eq!((devices(&half), devices(&near)), (told(1, false), told(1, true)));

        let found = doctor_of_places();
        let is_away = |line: &&String| line.contains(" of its memory is remote");
        let is_of = |line: &str, pod: &Pod| line.starts_with(&format!("default/{}: ", pod.name));
        let tells = |pod: &Pod| found.iter().filter(is_away).any(|line| is_of(line, pod));
        assert!(tells(&half) && tells(&huge) && found.len() == 2, "{found:?}");
        assert_says(&found.join("\n"), &["vendor.com/nic on 1"]);

        let metrics = run("steliactl export metrics");
        let ratio = format!(
            "stelia_instance_memory_away_ratio{{pod_uid=\"{}\",namespace=\"default\",pod=\"{}\"}} 0.",
            half.uid, half.name
        );
        assert_says(&metrics, &[&ratio]);
    });
}
