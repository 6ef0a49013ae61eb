//! Nobody but the vCPU threads runs on the exclusive CPUs: counted by the kernel's own trace, of one VM and of eight.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_ledger::account::Account;

use crate::contained::{configure, unconfigure};
use crate::container::{self, RULE, database, until_partition};
use crate::ledger::{more, settled, wait_booked};
use crate::runner::{boot_sector, start_on};
use crate::support::guest::Accel;
use crate::support::host::{Thread, all_pids, cpus, output, read, run, thread, wait_until};
use crate::support::linux_guest::{alive, topology, words};
use crate::support::pods::{Pod, on_node, on_node_undoing, pool};
use crate::support::promise::assert_isolated;

const TRACING: &str = "/sys/kernel/tracing";
const LOOP: &str = "while :; do :; done";

/// Busy loops that end with this value.
struct Noise(Vec<Child>);

/// How long eight VMs are watched.
const LONG: Duration = Duration::from_secs(60);

impl Noise {
    /// Two busy loops a CPU in system.slice, and two exec'd into the VM's own container.
    fn start(pod: &Pod) -> Self {
        let exec = || {
            Command::new("kubelet-standin")
                .args(["pod", "exec", &pod.name, "--", "timeout", "300", "sh", "-c", LOOP])
                .stdout(Stdio::null())
                .spawn()
                .expect("kubelet-standin")
        };
        let inside = vec![exec(), exec()];
        let loops = format!("for n in $(seq {}); do {{ {LOOP}; }} & done; wait", 2 * online());
        run(&["systemd-run", "--quiet", "--unit=noise", "sh", "-c", &loops]);
        Self(inside)
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        output(&["systemctl", "stop", "noise"]);
        // By its own first words: the loop's text is also in the command line of whoever watches the other pods.
        output(&["pkill", "-TERM", "-f", "^timeout 300 sh"]);
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn tracing(file: &str, value: &str) {
    fs::write(format!("{TRACING}/{file}"), value).unwrap_or_else(|e| panic!("{file}: {e}"));
}

fn online() -> usize {
    cpus(&read("/sys/devices/system/cpu/online")).len()
}

/// (CPU, name, thread) -> times switched in.
pub type Switches = BTreeMap<(u32, String, u32), u32>;

/// Record what is switched in on these CPUs meanwhile.
fn record(cpus: &CpuSet, meanwhile: Duration) {
    start(cpus);
    sleep(meanwhile);
    stop();
}

/// Record what is switched in on these CPUs from now on.
pub fn start(cpus: &CpuSet) {
    let mask: u64 = cpus.iter().fold(0, |mask, cpu| mask | 1 << cpu);
    tracing("tracing_on", "0");
    tracing("buffer_size_kb", "16384");
    tracing("tracing_cpumask", &format!("{mask:x}"));
    tracing("events/sched/sched_switch/enable", "1");
    tracing("trace", "");
    tracing("tracing_on", "1");
}

pub fn stop() {
    tracing("tracing_on", "0");
    tracing("events/sched/sched_switch/enable", "0");
}

/// What was recorded. To be read when the noise is over: it is a lot to do on the shared CPUs.
pub fn recorded(cpus: &CpuSet) -> Switches {
    for cpu in cpus.iter() {
        let stats = read(format!("{TRACING}/per_cpu/cpu{cpu}/stats"));
        assert!(
            stats.lines().any(|line| line == "overrun: 0"),
            "the trace lost events: {stats}"
        );
    }
    let text = fs::read(format!("{TRACING}/trace")).expect("trace");
    switches(&String::from_utf8_lossy(&text))
}

/// The switches in a trace.
pub fn switches(trace: &str) -> Switches {
    let mut counts = BTreeMap::new();
    for line in trace.lines().filter(|line| line.contains("sched_switch:")) {
        let parsed = (|| {
            let cpu = line.split_once('[')?.1.split_once(']')?.0.parse().ok()?;
            let (name, rest) = line.split_once("next_comm=")?.1.split_once(" next_pid=")?;
            Some((cpu, name.to_owned(), rest.split_whitespace().next()?.parse().ok()?))
        })();
        *counts.entry(parsed.unwrap_or_else(|| panic!("{line}"))).or_insert(0) += 1;
    }
    counts
}

/// A kernel thread that is bound to this one CPU. One that ended meanwhile is told by its name.
fn bound_kernel_thread(cpu: u32, name: &str, tid: u32) -> bool {
    let Some(thread) = thread(tid) else {
        return name.starts_with(&format!("kworker/{cpu}:"));
    };
    let user = fs::read(format!("/proc/{tid}/cmdline")).is_ok_and(|line| !line.is_empty());
    !user && thread.allowed.len() == 1 && thread.allowed.contains(cpu)
}

/// Those that are neither one of these vCPU threads on its own CPU nor the kernel's own for that CPU.
pub fn foreign(seen: &Switches, vcpus: &[Thread]) -> Switches {
    let ours = |cpu: u32, tid: u32| vcpus.iter().any(|vcpu| vcpu.tid == tid && vcpu.allowed.contains(cpu));
    let known = |cpu, name: &str, tid| ours(cpu, tid) || tid == 0 || bound_kernel_thread(cpu, name, tid);
    let strange = seen.iter().filter(|((cpu, name, tid), _)| !known(*cpu, name, *tid));
    strange.map(|(who, times)| (who.clone(), *times)).collect()
}

fn run_time(tid: u32) -> u64 {
    let text = read(format!("/proc/{tid}/schedstat"));
    text.split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok())
        .expect("schedstat")
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
        let before: u64 = threads.vcpus.iter().map(|vcpu| run_time(vcpu.tid)).sum();
        record(&exclusive, Duration::from_secs(5));
        let after: u64 = threads.vcpus.iter().map(|vcpu| run_time(vcpu.tid)).sum();
        let loud = run(&["systemctl", "show", "-P", "CPUUsageNSec", "noise"]);
        drop(noise);
        let seen = recorded(&exclusive);
        let foreign = foreign(&seen, &threads.vcpus);
        println!("  switch-ins on {exclusive}: {seen:?}");
        println!(
            "  foreign: {}; vCPUs ran {} ms",
            foreign.len(),
            (after - before) / 1_000_000
        );
        assert!(foreign.is_empty(), "{foreign:?}");
        assert!(after > before, "the vCPUs did not run at all");
        assert!(
            loud.parse::<u64>().expect("CPUUsageNSec") > 100_000_000,
            "no noise: {loud}"
        );
        assert_eq!(assert_after_noise(&pod), threads.vcpus.len());
    });
}

/// The exec'd shells are in the origin beside the anchor, so only the vCPU threads are held to the promise again.
fn assert_after_noise(pod: &Pod) -> usize {
    let vcpus = pod.threads().vcpus;
    for vcpu in &vcpus {
        assert_eq!((vcpu.cgroup.clone(), vcpu.allowed.len()), (pod.vcpu(), 1));
    }
    vcpus.len()
}

/// Jumps to itself.
const BUSY: [u8; 2] = [0xeb, 0xfe];

/// In a boot of its own, with 16 CPUs (`run.sh`): seven VMs of one vCPU that is never idle, and one of four whose guest is a system that
/// works and sleeps.
#[test]
fn of_eight_vms_under_a_minute_of_noise_none_sees_anybody_on_its_cpus() {
    on_node(|| {
        assert_eq!(online(), 16, "this is for a larger node (node run --cpus 16)");
        let system = Pod::start_qemu(
            Accel::of_node(),
            "system",
            &["--cpus", "4"],
            &["--qmp", "/run/qmp"],
            &words(),
        );
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
        for pit in all_pids()
            .into_iter()
            .filter_map(thread)
            .filter(|one| one.name.starts_with("kvm-pit/"))
        {
            assert!(pit.allowed.is_disjoint(&exclusive), "{pit:?}");
        }
        // Before the noise: each answer takes seconds beside it, on a node that is emulated.
        pods.iter().for_each(|pod| wait_booked(pod));
        let booked: Vec<Account> = pods.iter().map(|pod| settled(pod)).collect();
        let noise = Noise::start(&system);
        let ran = || -> Vec<u64> { vcpus.concat().iter().map(|vcpu| run_time(vcpu.tid)).collect() };
        let before = ran();
        record(&exclusive, LONG);
        let after = ran();
        let loud = run(&["systemctl", "show", "-P", "CPUUsageNSec", "noise"]);
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
        let foreign = foreign(&seen, &vcpus.concat());
        for (pod, vcpus) in pods.iter().zip(&vcpus) {
            let own = pod.exclusive();
            let times: u32 = seen
                .iter()
                .filter(|((cpu, ..), _)| own.contains(*cpu))
                .map(|(_, times)| times)
                .sum();
            let strange: u32 = foreign
                .iter()
                .filter(|((cpu, ..), _)| own.contains(*cpu))
                .map(|(_, times)| times)
                .sum();
            println!(
                "  {} on {own}: {times} switch-ins, {strange} foreign; {} vCPUs",
                pod.name,
                vcpus.len()
            );
            assert_eq!(pod.threads().vcpus, *vcpus);
        }
        assert!(foreign.is_empty(), "{foreign:?}");
        let ran = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| after > before)
            .count();
        println!("  {ran} of {} vCPUs ran meanwhile", vcpus.concat().len());
        assert_eq!(ran, vcpus.concat().len());
        assert!(alive(&system) > said, "the guest that is a system stood still");
        assert!(
            loud.parse::<u64>().expect("CPUUsageNSec") > 1_000_000_000,
            "no noise: {loud}"
        );
    });
}

/// In a boot of its own, with 16 CPUs: four VMs in stelia.slice, and eight containers whose own cgroup is the partition.
#[test]
fn of_four_vms_and_eight_containers_under_noise_none_sees_anybody_on_its_cpus() {
    on_node_undoing(unconfigure, || {
        assert_eq!(online(), 16, "this is for a larger node (node run --cpus 16)");
        configure(RULE);
        let busy = ["-smp", "1", "-drive", &boot_sector("busy.img", &BUSY)];
        let start = |n: u32| start_on(Accel::of_node(), &format!("vm-{n}"), "1", &[], &busy);
        let vms: Vec<Pod> = (0..4).map(start).collect();
        vms.iter().for_each(Pod::wait_running);
        let runtime = |n: u32| if n.is_multiple_of(2) { "runc" } else { "crun" };
        let containers: Vec<Pod> = (0..8)
            .map(|n| database(&n.to_string(), runtime(n), &["--cpus", "1"]))
            .collect();
        containers
            .iter()
            .for_each(|pod| until_partition(pod, "beside all others"));
        let vcpus: Vec<Thread> = vms.iter().flat_map(|pod| pod.threads().vcpus).collect();
        let all = vms.iter().chain(&containers);
        let exclusive = all.fold(CpuSet::new(), |all, pod| all.union(&pod.exclusive()));
        assert_eq!((exclusive.len(), vcpus.len()), (12, 4));

        let noise = Noise::start(&vms[0]);
        record(&exclusive, LONG);
        let loud = run(&["systemctl", "show", "-P", "CPUUsageNSec", "noise"]);
        let seen = recorded(&exclusive);
        let on = |pod: &Pod| -> u32 {
            let own = seen.iter().filter(|((cpu, ..), _)| pod.exclusive().contains(*cpu));
            own.map(|(_, times)| times).sum()
        };
        for pod in &containers {
            let foreign = container::foreign(pod, &seen);
            println!(
                "  {} on {}: {} switch-ins, foreign: {foreign:?}",
                pod.name,
                pod.exclusive(),
                on(pod)
            );
            assert!(foreign.is_empty() && on(pod) > 0, "{seen:?}");
        }
        let mut of_vms = seen.clone();
        of_vms.retain(|(cpu, ..), _| vms.iter().any(|pod| pod.exclusive().contains(*cpu)));
        assert_eq!(foreign(&of_vms, &vcpus), Switches::new());
        assert!(
            loud.parse::<u64>().expect("CPUUsageNSec") > 1_000_000_000,
            "no noise: {loud}"
        );

        // One gets another CPU beside the noise.
        let free = pool().iter().last().expect("a shared CPU").to_string();
        run(&["kubelet-standin", "pod", "resize", "database-0", "--cpuset", &free]);
        until_partition(&Pod::show("database-0"), "after a resize");
        // Beside the noise an emulated node of 16 CPUs takes more than a minute to start the daemon.
        drop(noise);
        run(&["systemctl", "restart", "steliad"]);
        let containers: Vec<Pod> = containers.iter().map(|pod| Pod::show(&pod.name)).collect();
        containers
            .iter()
            .for_each(|pod| until_partition(pod, "after a restart"));
        for pod in &vms {
            assert_isolated(pod, 1);
        }

        // Half of them are given back; the others do not notice.
        configure("audit-interval-s = 3600\n");
        let (leaving, staying) = containers.split_at(4);
        for pod in leaving {
            run(&["steliactl", "deregister", &pod.uid]);
        }
        for pod in staying {
            until_partition(pod, "beside those that were given back");
        }
        for pod in leaving {
            let own = container::own(pod);
            wait_until("given back", || {
                (read(own.join("cpuset.cpus.partition")) == "member").then_some(())
            });
        }
        for pod in &containers {
            run(&["kubelet-standin", "pod", "delete", &pod.name, "--grace", "0"]);
        }
        for pod in &vms {
            assert_isolated(pod, 1);
        }
    });
}
