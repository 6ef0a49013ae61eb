//! Two VMs of which one shrinks and the other gets its CPUs.

use stelia_cpus::CpuSet;

use super::{
    FOUR, INITRAMFS, PATIENT, TWO, assert_alone, assert_topology, guest, make_linux, seen, until_counted, until_resized,
};
use crate::support::*;

fn vcpus(pod: &Pod) -> Vec<u32> {
    pod.threads().identities().into_iter().map(|(tid, _)| tid).collect()
}

/// On none of these CPUs did both VMs run at the same time: the giver's last entry is before the taker's first.
fn assert_handed_over(entries: &[Entry], cpus: &CpuSet, giver: &[u32], taker: &[u32]) {
    for cpu in cpus.iter() {
        let mut here = entries.iter().filter(|entry| entry.cpu == cpu).map(|entry| entry.tid);
        let strangers = here.clone().filter(|tid| !giver.contains(tid) && !taker.contains(tid));
        let strangers: Vec<u32> = strangers.collect();
        assert!(strangers.is_empty(), "CPU {cpu}: {strangers:?}");
        here.by_ref().take_while(|tid| giver.contains(tid)).for_each(drop);
        let taken = here.clone().count();
        assert!(taken > 0, "CPU {cpu} is not used");
        let back = here.find(|tid| giver.contains(tid));
        assert!(back.is_none(), "the giver runs on CPU {cpu} after the taker");
    }
}

/// `giver` has 4 CPUs and `taker` 2; in the end it is the other way round. `write` makes the change in kubelet's file.
fn exchanged(giver: &Pod, taker: &Pod, write: impl FnOnce(&str, &str)) -> (Pod, Pod) {
    let (kept, former) = (giver.exclusive().iter().take(2).collect::<CpuSet>(), taker.exclusive());
    let moved = giver.exclusive().difference(&kept);
    let large = former.union(&moved);
    let before = (own_threads(giver), own_threads(taker));
    let giving = vcpus(giver);
    let undisturbed = [("giver", &kept), ("taker", &former)].map(|(name, cpus)| Trace::switches(name, cpus));
    let entries = Trace::entries("moved", &moved, "0");
    write(&kept.to_string(), &large.to_string());
    let (giver, taker) = (giver.now(), taker.now());
    assert_eq!((giver.exclusive(), taker.exclusive()), (kept.clone(), large));
    // The taker does not wait for the giver's guest.
    let both = || seen(&taker) + &seen(&giver);
    wait_until_or(&format!("4 vCPUs of {}", taker.name), both, || is_isolated(&taker, 4));
    until_resized(&giver, 2);
    until_counted(&taker, 4);
    assert_handed_over(&entries.end(), &moved, &giving, &vcpus(&taker));
    let [on_kept, on_former] = undisturbed.map(|trace| switches(&trace.text()));
    let sides = [
        (&giver, before.0, &kept, on_kept),
        (&taker, before.1, &former, on_former),
    ];
    for (pod, before, cpus, seen) in sides {
        let own = before.union(&own_threads(pod)).copied().collect();
        assert_eq!(foreign_to(&own, cpus, &seen), [], "{}: {seen:#?}", pod.name);
    }
    for (pod, vcpus) in [(&giver, 2), (&taker, 4)] {
        assert_isolated(pod, vcpus);
        assert_topology(pod, vcpus);
        assert_alone(pod);
    }
    (giver, taker)
}

#[test]
fn two_vms_exchange_cpus_and_never_run_on_one_at_the_same_time() {
    make_linux();
    configured_on_kvm(PATIENT, || {
        let start = |name: &str, count: &str, smp: &str| {
            start_on(Accel::Kvm, name, count, &[], &guest(smp, INITRAMFS, KERNEL_WORDS))
        };
        let (a, b) = (start("a", "4", FOUR), start("b", "2", TWO));
        a.wait_running();
        b.wait_running();
        until_resized(&a, 4);
        until_resized(&b, 2);
        let in_one_write = |giver: &str, kept: &str, taker: &str, large: &str| {
            let (kept, large) = (format!("{giver}={kept}"), format!("{taker}={large}"));
            run(&["kubelet-standin", "pod", "exchange", &kept, &large]);
        };
        // The second comes while the giver still has its vCPUs.
        let in_two_writes = |giver: &Pod, kept: &str, taker: &Pod, large: &str| {
            giver.resize("--cpuset", kept);
            taker.resize("--cpuset", large);
        };
        let (a, b) = exchanged(&a, &b, |kept, large| in_one_write("a", kept, "b", large));
        let (b, a) = exchanged(&b, &a, |kept, large| in_two_writes(&b, kept, &a, large));
        let (a, b) = exchanged(&a, &b, |kept, large| in_two_writes(&a, kept, &b, large));
        exchanged(&b, &a, |kept, large| in_one_write("b", kept, "a", large));
    });
}
