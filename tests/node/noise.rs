//! Nobody but the vCPU threads runs on the exclusive CPUs: counted by the kernel's own trace, of one VM and of eight.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_ledger::account::Account;

use crate::guest::Accel;
use crate::host::{Thread, all_pids, cpus, output, read, run, thread};
use crate::ledger::{more, settled, wait_booked};
use crate::linux_guest::{alive, topology, words};
use crate::pods::{Pod, on_node};
use crate::promise::assert_isolated;
use crate::runner::{boot_sector, start_on};

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
    let mut counts = BTreeMap::new();
    for line in String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| line.contains("sched_switch:"))
    {
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
