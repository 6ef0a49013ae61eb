//! Nobody but the vCPU threads runs on the exclusive CPUs: counted by the kernel's own trace, of one VM and of eight.

use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_ledger::account::Account;

use crate::ledger::{more, settled, wait_booked};
use crate::support::*;

const LOOP: &str = "while :; do :; done";

/// Busy loops that end with this value.
struct Noise(Vec<Child>);

impl Noise {
    /// Two busy loops a CPU in system.slice, and two exec'd into the VM's own container.
    fn start(pod: &Pod) -> Self {
        let exec = || {
            let mut command = pod.exec_command();
            command.args(["timeout", "300", "sh", "-c", LOOP]).stdout(Stdio::null());
            command.spawn().expect("kubelet-standin")
        };
        let inside = vec![exec(), exec()];
        let loops = format!("for n in $(seq {}); do {{ {LOOP}; }} & done; wait", 2 * online().len());
        run(&["systemd-run", "--quiet", "--unit=noise", "sh", "-c", &loops]);
        Self(inside)
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        output("systemctl stop noise");
        // By its own first words: the loop's text is also in the command line of whoever watches the other pods.
        output(&["pkill", "-TERM", "-f", "^timeout 300 sh"]);
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

#[test]
fn under_noise_nobody_else_is_switched_in_on_exclusive_cpus() {
    on_node(|| {
        let pod = Pod::vm("quiet", 2);
        Pod::start("busy", &["--qos", "burstable"], &["sh", "-c", LOOP]);
        let threads = assert_isolated(&pod, 2);
        let exclusive = pod.exclusive();
        let noise = Noise::start(&pod);
        sleep(Duration::from_secs(2));
        let before = threads.ran();
        record(&exclusive, Duration::from_secs(5));
        let after = threads.ran();
        let loud: u64 = number(&property("CPUUsageNSec", "noise"));
        drop(noise);
        let seen = recorded(&exclusive);
        let foreign = strange_to_vcpus(&seen, &threads.vcpus);
        println!("  switch-ins on {exclusive}: {seen:?}");
        println!("  vCPUs ran {} ms", (after - before) / 1_000_000);
        assert!(foreign.is_empty(), "{foreign:?}");
        assert!(after > before, "the vCPUs did not run at all");
        assert!(loud > 100_000_000, "no noise: {loud}");
        // The exec'd shells are in the origin beside the anchor, so only the vCPU threads are held to the promise again.
        let vcpus = pod.threads().vcpus;
        assert_seated(&pod, &vcpus);
        assert_eq!(vcpus.len(), threads.vcpus.len());
    });
}

/// Jumps to itself.
const BUSY: [u8; 2] = [0xeb, 0xfe];

/// On a node with 16 CPUs: seven VMs of one vCPU that is never idle, and one of four whose guest works and sleeps.
#[test]
fn of_eight_vms_under_a_minute_of_noise_none_sees_anybody_on_its_cpus() {
    on_node(|| {
        assert_eq!(online().len(), 16, "this is for a larger node (node run --cpus 16)");
        let system = start_on(Accel::of_node(), "system", "4", &[], &system());
        let busy = ["-smp", "1", "-drive", &boot_sector("busy.img", &BUSY)];
        let start = |n: u32| start_on(Accel::of_node(), &format!("small-{n}"), "1", &[], &busy);
        let small: Vec<Pod> = (1..8).map(start).collect();
        small.iter().for_each(Pod::wait_running);
        system.wait_running();
        topology(&system);
        let said = alive(&system);
        let pods: Vec<&Pod> = small.iter().chain([&system]).collect();
        let vcpus: Vec<Vec<Thread>> = pods.iter().map(|pod| pod.threads().vcpus).collect();
        let exclusive = pods.iter().fold(CpuSet::new(), |all, pod| all.union(&pod.exclusive()));
        assert_eq!((exclusive.len(), vcpus.concat().len()), (11, 11));
        // The emulated timers': kernel threads bound to nobody, kept off by the partitions made after them.
        for pit in processes_named("kvm-pit/") {
            assert!(pit.allowed.is_disjoint(&exclusive), "{pit:?}");
        }
        // Before the noise: each answer takes seconds beside it, on a node that is emulated.
        pods.iter().for_each(|pod| wait_booked(pod));
        let booked: Vec<Account> = pods.iter().map(|pod| settled(pod)).collect();
        let noise = Noise::start(&system);
        let ran = || -> Vec<u64> { vcpus.concat().iter().map(|vcpu| run_time(vcpu.tid)).collect() };
        let before = ran();
        record(&exclusive, Duration::from_secs(60));
        let after = ran();
        let loud: u64 = number(&property("CPUUsageNSec", "noise"));
        drop(noise);
        for (pod, before) in pods.iter().zip(&booked) {
            let now = settled(pod);
            let others = more(now.totals.other_tasks, before.totals.other_tasks);
            println!(
                "  the ledger of {}: other tasks {others:?}, kernel threads {:?}, covered {} ms",
                pod.name,
                now.totals.kernel_threads,
                (now.covered_us - before.covered_us) / 1000
            );
            assert_eq!(others, Some(0), "{now:#?}");
            assert!(now.covered_us > before.covered_us);
        }
        let seen = recorded(&exclusive);
        let foreign = strange_to_vcpus(&seen, &vcpus.concat());
        println!("  {} switch-ins on {exclusive}", times(&seen));
        for (pod, vcpus) in pods.iter().zip(&vcpus) {
            assert_eq!(pod.threads().vcpus, *vcpus);
        }
        assert!(foreign.is_empty(), "{foreign:?}");
        let ran = before.iter().zip(&after).filter(|(before, after)| after > before);
        assert_eq!(ran.count(), vcpus.concat().len(), "vCPUs that ran meanwhile");
        assert!(alive(&system) > said, "the guest that is a system stood still");
        assert!(loud > 1_000_000_000, "no noise: {loud}");
    });
}
