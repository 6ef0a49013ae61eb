//! Where the interrupts of passed-through devices fire while their guest works them, and what is counted of them.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;

use super::devices::{CARD, DISK, Given};
use super::guest::{start, told, wait_working};
use super::with_devices;
use crate::ledger::{account, wait_booked};
use crate::quiet::interrupts::{Interrupt, Watch, fired};
use crate::quiet::round;
use crate::support::*;

const CONT: &str = r#"{"execute":"cont"}"#;

/// How often each vector of these devices fired on these CPUs since boot.
fn counts(devices: &[Given], on: &CpuSet) -> BTreeMap<String, u64> {
    let own = |name: &str| devices.iter().any(|device| device.is_vector(name));
    let all = fired(on).into_iter().map(|(one, count)| (one.name, count));
    all.filter(|(name, count)| *count > 0 && own(name)).collect()
}

/// The guest stands still, and so do its devices.
fn pause(pod: &Pod, devices: &[Given]) {
    qmp(pod, r#"{"execute":"stop"}"#);
    let mut last = counts(devices, &online());
    wait_until("its devices are silent", || {
        let before = std::mem::replace(&mut last, counts(devices, &online()));
        std::thread::sleep(std::time::Duration::from_millis(300));
        before == last
    });
}

fn difference(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let before = |name: &str| before.get(name).copied().unwrap_or(0);
    let more = now.iter().map(|(name, count)| (name.clone(), count - before(name)));
    more.filter(|(_, count)| *count > 0).collect()
}

/// Each vector with where it may fire and where the kernel has it.
pub fn places(devices: &[Given]) -> Vec<(String, CpuSet, CpuSet)> {
    let place = |one: Interrupt| (one.name.clone(), one.mask(), one.placed());
    devices.iter().flat_map(Given::vectors).map(place).collect()
}

/// After the daemon's next order every vector may fire, and is, where it should.
fn until_every_vector(devices: &[Given], what: &str, is_right: &dyn Fn(&CpuSet, &CpuSet) -> bool) {
    let said = || format!(": {:#?}", places(devices));
    round();
    wait_until_or(&format!("every vector {what}"), said, || {
        let places = places(devices);
        !places.is_empty() && places.iter().all(|(_, mask, placed)| is_right(mask, placed))
    });
}

pub fn until_off_own_cpus(pod: &Pod, devices: &[Given]) {
    let own = pod.exclusive();
    let is_off = |mask: &CpuSet, placed: &CpuSet| mask.is_disjoint(&own) && placed.is_disjoint(&own);
    until_every_vector(devices, "is off the VM's CPUs", &is_off);
}

pub fn until_on_own_cpus(pod: &Pod, devices: &[Given]) {
    let own = pod.exclusive();
    let is_on = |mask: &CpuSet, placed: &CpuSet| *mask == own && placed.is_subset(&own);
    until_every_vector(devices, "is on the VM's CPUs", &is_on);
}

/// While the guest worked: what the ledger booked as the VM's own and as others', and what `/proc/interrupts` counted on the VM's CPUs.
fn booked(pod: &Pod, devices: &[Given]) -> [BTreeMap<String, u64>; 3] {
    let own = pod.exclusive();
    let of_devices = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
        let mut more = difference(now, before);
        more.retain(|name, _| devices.iter().any(|device| device.is_vector(name)));
        more
    };
    pause(pod, devices);
    let (earlier, before) = (account(pod).totals, counts(devices, &own));
    let everywhere = counts(devices, &online()).values().sum::<u64>();
    qmp(pod, CONT);
    wait_until("its devices fired some hundred times", || {
        counts(devices, &online()).values().sum::<u64>() > everywhere + 300
    });
    pause(pod, devices);
    let (later, now) = (account(pod).totals, counts(devices, &own));
    qmp(pod, CONT);
    [
        of_devices(&later.own_interrupts, &earlier.own_interrupts),
        of_devices(&later.devices, &earlier.devices),
        difference(&now, &before),
    ]
}

#[test]
fn vectors_float_or_fire_on_the_vms_own_cpus_and_are_booked_as_counted() {
    with_devices(|| {
        let given = [Given::at(CARD, 0), Given::at(DISK, 0)];
        let pod = start("vectors", "2-3", &given, "");
        wait_working(&pod, &given);
        assert_isolated(&pod, 2);
        let own = pod.exclusive();

        // Float, the default: never on its CPUs, from the guest's first look at its devices on.
        assert_eq!(counts(&given, &own), BTreeMap::new(), "{:#?}", places(&given));
        // The card: its link, and two queues each way; the disk: its administration, and a queue for each vCPU.
        let vectors = [0, 1].map(|one| given[one].vectors().len());
        assert_eq!(vectors, [5, 3], "{:#?}", places(&given));
        for (name, mask, placed) in places(&given) {
            assert!(mask.union(&placed).is_disjoint(&own), "{name}: {mask}, {placed}");
        }
        wait_booked(&pod);
        let [as_own, as_others, counted] = booked(&pod, &given);
        assert_eq!((as_own, as_others, counted), Default::default());

        // Own: only on its CPUs, and its own by the ledger's word.
        configure("vfio-irqs = \"own\"\n");
        let report = round().report;
        for (name, mask, placed) in places(&given) {
            let is_on = mask == own && placed.is_subset(&own);
            assert!(is_on, "{name}: {mask}, {placed}; {report:#?}");
        }
        let rest = Watch::start(&online().difference(&own));
        let [as_own, as_others, counted] = booked(&pod, &given);
        assert!(counted.values().sum::<u64>() > 300, "{counted:?}");
        assert_eq!((as_own, as_others), (counted, BTreeMap::new()));
        let mut elsewhere = rest.risen();
        elsewhere.retain(|one, _| one.name.starts_with("vfio-"));
        assert_eq!(elsewhere, BTreeMap::new());
        top_counts_them(&pod);
        the_guest_moves_its_queue_and_the_host_does_not_know(&pod, &given);

        // And back.
        configure("vfio-irqs = \"float\"\n");
        until_off_own_cpus(&pod, &given);
        let before = counts(&given, &own);
        wait_working(&pod, &given);
        assert_eq!(counts(&given, &own), before);
    });
}

/// IRQ/S of `top` is what `/proc/interrupts` counted meanwhile on the VM's CPUs.
fn top_counts_them(pod: &Pod) {
    const SECONDS: f64 = 3.0;
    let own = pod.exclusive();
    let watch = Watch::start(&own);
    let top = json(&run(&format!("steliactl --json top --count 1 -d 3 {}", pod.uid)));
    let all = watch.risen().values().sum::<u64>();
    let rate = top["instances"][0]["device_interrupts_per_second"].as_f64();
    let rate = rate.unwrap_or_else(|| panic!("no rate: {top}"));
    // The first reading is a little after ours, and the last a little before.
    let meanwhile = rate * SECONDS;
    let is_as_counted = meanwhile <= all as f64 && meanwhile > 0.3 * all as f64;
    assert!(is_as_counted, "{rate} a second, {all} in all");
}

/// The guest gives a queue of its card from one of its vCPUs to the other; the host's vector stays where it is.
fn the_guest_moves_its_queue_and_the_host_does_not_know(pod: &Pod, given: &[Given]) {
    let queue = "eth0-rx-0";
    let before = (told(pod).1, places(given));
    let on = |vcpu: usize| {
        let now = told(pod).1;
        let count = |counts: &super::guest::Counts| counts.get(queue).map_or(0, |counts| counts[vcpu]);
        count(&now) > count(&before.0)
    };
    wait_until("the queue fired on both vCPUs", || on(0) && on(1));
    assert_eq!(places(given), before.1);
}
