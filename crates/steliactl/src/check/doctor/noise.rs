//! What only a boot, or the administrator, can still take off the CPUs of VMs; each with what it would gain here, measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use stelia_api::quiet::{Remaining, RemainingCause};
use stelia_cpus::CpuSet;

use super::Facts;
use super::checks::{Finding, advice, ok};
use crate::shared::kernel::interrupts::{per_cpu, softirqs};
use crate::shared::output::counted;

/// How long the measurement takes.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Limit of the names that are printed.
const MAX_NAMED: usize = 3;

/// The names of the local timer's interrupts, on x86 and on arm64. Not those of the timers that an arm64 guest programs itself: `nohz_full=`
/// would not change them.
const LOCAL_TIMERS: [&str; 2] = ["LOC", "arch_timer"];

/// What was counted on the CPUs that VMs have, a second and CPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Noise {
    pub cpus: CpuSet,
    /// `LOC` of `/proc/interrupts`, on arm64 `arch_timer`: the tick, and timers of KVM for the guest.
    pub timers: f64,
    /// `RCU` of `/proc/softirqs`.
    pub rcu: f64,
    /// `NET_RX` of `/proc/softirqs`.
    pub net_rx: f64,
    /// Receive queues whose `rps_cpus` has CPUs of VMs, with these.
    pub rps: BTreeMap<String, CpuSet>,
}

impl Noise {
    /// Measures the CPUs; `root` is `/`.
    pub(crate) async fn measure(root: &Path, cpus: &CpuSet) -> Self {
        let proc = root.join("proc");
        let counts = || {
            let (interrupts, softirqs) = (per_cpu(&proc, cpus), softirqs(&proc, cpus));
            let named = [
                (&interrupts, &LOCAL_TIMERS[..]),
                (&softirqs, &["RCU"]),
                (&softirqs, &["NET_RX"]),
            ];
            named.map(|(counts, names)| counts.as_ref().map(|counts| sum(counts, names)))
        };
        let (began, before) = (Instant::now(), counts());
        tokio::time::sleep(MEASURE_INTERVAL).await;
        let now = counts();
        let cpu_seconds = began.elapsed().as_secs_f64() * cpus.len() as f64;
        let rate = |at: usize| {
            let grown = now[at]
                .zip(before[at])
                .and_then(|(now, before)| now.checked_sub(before));
            grown.map_or(0.0, |grown| grown as f64 / cpu_seconds)
        };
        Self {
            timers: rate(0),
            rcu: rate(1),
            net_rx: rate(2),
            rps: rps(&root.join("sys/class/net"), cpus),
            cpus: cpus.clone(),
        }
    }
}

/// The counts of these lines together; one that is not there counted nothing yet.
fn sum(counts: &BTreeMap<String, u64>, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| counts.get(*name)).sum()
}

/// The receive queues that are steered to these CPUs, as `eth0/rx-0` (Documentation/networking/scaling.rst).
fn rps(net: &Path, cpus: &CpuSet) -> BTreeMap<String, CpuSet> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    let mut found = BTreeMap::new();
    for device in names(net) {
        let queues = net.join(&device).join("queues");
        for queue in names(&queues).into_iter().filter(|queue| queue.starts_with("rx-")) {
            let mask = fs::read_to_string(queues.join(&queue).join("rps_cpus")).unwrap_or_default();
            let both = CpuSet::from_mask(mask.trim()).unwrap_or_default().intersection(cpus);
            if !both.is_empty() {
                found.insert(format!("{device}/{queue}"), both);
            }
        }
    }
    found
}

/// A line for each of what could be had; none where no VM has CPUs.
pub(super) fn checks(facts: &Facts) -> Vec<(&'static str, Finding)> {
    let Some(noise) = &facts.noise else { return Vec::new() };
    vec![
        ("nohz_full", nohz_full(facts, noise)),
        ("rcu_nocbs", rcu_nocbs(facts, noise)),
        ("managed_irq", managed_irq(facts, noise)),
        ("rps", steered(noise)),
    ]
}

/// The CPUs that VMs may get, for the kernel's command line: it is read once, VMs come and go.
fn wanted(facts: &Facts, noise: &Noise) -> CpuSet {
    let kubelets = facts.kubelet.as_ref().map(|kubelet| &kubelet.reserved_system_cpus);
    let reserved = kubelets.map_or(CpuSet::new(), |cpus| cpus.union(&facts.allocator.reserved));
    match &facts.topology {
        Ok(topology) if !reserved.is_empty() => topology.online().difference(&reserved),
        _ => noise.cpus.clone(),
    }
}

/// A number a second, to a tenth where it is small.
fn a_second(rate: f64) -> String {
    match rate {
        rate if rate >= 10.0 => format!("{rate:.0}"),
        rate => format!("{rate:.1}"),
    }
}

/// Less than one in ten seconds: it would gain nothing that can be seen.
fn is_none(rate: f64) -> bool {
    rate < 0.1
}

fn nohz_full(facts: &Facts, noise: &Noise) -> Finding {
    let timers = format!("{} local timer interrupts a second on each", a_second(noise.timers));
    if noise.cpus.is_subset(&facts.nohz_full) {
        return ok(format!("has the VMs' CPUs {}; {timers}", noise.cpus));
    }
    let without = noise.cpus.difference(&facts.nohz_full);
    if parameter(&facts.cmdline, "nohz_full").is_some() && facts.nohz_full.is_empty() {
        return advice(
            format!("on the command line, but this kernel does not support it; {timers} of the CPUs {without}"),
            "a kernel with CONFIG_NO_HZ_FULL",
        );
    }
    if is_none(noise.timers) {
        return ok("not on the VMs' CPUs; nothing to gain now: no local timer interrupts there");
    }
    advice(
        format!("does not have the VMs' CPUs {without}: {timers}"),
        format!(
            "boot with nohz_full={}: without the tick nearly all of these end while a vCPU runs; those that KVM sets for the guest's \
             own timers stay, and entering the kernel costs a little more",
            wanted(facts, noise)
        ),
    )
}

fn rcu_nocbs(facts: &Facts, noise: &Noise) -> Finding {
    let softirqs = format!("{} RCU softirqs a second on each", a_second(noise.rcu));
    let given = parameter(&facts.cmdline, "rcu_nocbs");
    let listed = match given {
        // Without a list, and as "all", it is every CPU.
        Some("" | "all") => Some(noise.cpus.clone()),
        Some(list) => list.parse::<CpuSet>().ok(),
        None => Some(CpuSet::new()),
    };
    let Some(listed) = listed else {
        let given = given.unwrap_or_default();
        return ok(format!(
            "{given} is on the command line, which is not understood here; {softirqs}"
        ));
    };
    // nohz_full= implies it (Documentation/admin-guide/kernel-parameters.txt).
    let without = noise.cpus.difference(&listed.union(&facts.nohz_full));
    if without.is_empty() {
        return ok(format!("has the VMs' CPUs {}; {softirqs}", noise.cpus));
    }
    if is_none(noise.rcu) {
        return ok("not on the VMs' CPUs; nothing to gain now: no RCU softirqs there");
    }
    advice(
        format!("does not have the VMs' CPUs {without}: {softirqs}"),
        format!(
            "boot with rcu_nocbs={} (nohz_full= includes it): RCU's callbacks then run in threads on the shared CPUs",
            wanted(facts, noise)
        ),
    )
}

fn managed_irq(facts: &Facts, noise: &Noise) -> Finding {
    let has = managed_irq_cpus(&facts.cmdline);
    if noise.cpus.is_subset(&has) {
        return ok(format!("isolcpus=managed_irq has the VMs' CPUs {}", noise.cpus));
    }
    let remaining = facts.quiet.iter().flat_map(|quiet| &quiet.report.remaining);
    let managed: Vec<&Remaining> = remaining.filter(|one| one.why == RemainingCause::Managed).collect();
    let fired: u64 = managed.iter().fold(0, |sum: u64, one| sum.saturating_add(one.count));
    if fired == 0 {
        return ok(match managed.len() {
            0 => "no managed interrupt reaches VMs' CPUs".to_owned(),
            count => format!(
                "not set; nothing to gain now: {} could reach VMs' CPUs, none fired there",
                counted(count as u64, "managed interrupt")
            ),
        });
    }
    let fired_there = managed.iter().filter(|one| one.count > 0);
    let names: Vec<&str> = fired_there.map(|one| one.name.as_str()).collect();
    let cpus = managed.iter().fold(CpuSet::new(), |all, one| all.union(&one.cpus));
    advice(
        format!(
            "managed interrupts fired {fired} times on the VMs' CPUs {cpus}: {}",
            listed(&names)
        ),
        format!(
            "boot with isolcpus=managed_irq,{}: the kernel then gives them to other CPUs of their queue; a queue that has only such \
             CPUs keeps them, and fires for I/O that they submit. Only queues of PCI devices follow it. No other flag of isolcpus=",
            wanted(facts, noise)
        ),
    )
}

fn steered(noise: &Noise) -> Finding {
    if noise.rps.is_empty() {
        return ok("no receive queue of the network is steered to VMs' CPUs");
    }
    let queues: Vec<&str> = noise.rps.keys().map(String::as_str).collect();
    let cpus = noise.rps.values().fold(CpuSet::new(), |all, some| all.union(some));
    advice(
        format!(
            "receive queues are steered to the VMs' CPUs {cpus}: {}; {} NET_RX softirqs a second on each of the VMs' CPUs",
            listed(&queues),
            a_second(noise.net_rx)
        ),
        "write masks without these CPUs to /sys/class/net/DEVICE/queues/rx-N/rps_cpus: this takes effect at once, without a reboot; steliad does \
         not write them",
    )
}

/// The first names, and how many more.
fn listed(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().copied().take(MAX_NAMED).collect();
    match names.len().saturating_sub(MAX_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The last value of a parameter of the kernel's command line; empty where it has none.
fn parameter<'a>(cmdline: &'a str, name: &str) -> Option<&'a str> {
    let words = cmdline.split_whitespace();
    let mut values = words.filter_map(|word| match word.split_once('=') {
        Some((one, value)) => (one == name).then_some(value),
        None => (word == name).then_some(""),
    });
    values.next_back()
}

/// The CPUs of `isolcpus=` with the flag managed_irq.
pub(in crate::check) fn managed_irq_cpus(cmdline: &str) -> CpuSet {
    let value = parameter(cmdline, "isolcpus").unwrap_or_default();
    if value.split(',').any(|part| part == "managed_irq") {
        isolcpus_list(value)
    } else {
        CpuSet::new()
    }
}

/// The CPUs of a value of `isolcpus=`, without its flags.
pub(super) fn isolcpus_list(value: &str) -> CpuSet {
    let parts = value.split(',').filter_map(|part| part.parse::<CpuSet>().ok());
    parts.fold(CpuSet::new(), |all, some| all.union(&some))
}

/// Whether a value of `isolcpus=` takes its CPUs out of the scheduler's balancing: it has the flag domain, or no flag.
pub(super) fn is_domain(value: &str) -> bool {
    let mut flags = value
        .split(',')
        .filter(|part| part.starts_with(|c: char| c.is_ascii_alphabetic()));
    let mut any = false;
    let domain = flags.any(|flag| {
        any = true;
        flag == "domain"
    });
    domain || !any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_a_parameter_counts_and_flags_are_no_cpus() {
        assert_eq!(parameter("quiet nohz_full=2 nohz_full=3", "nohz_full"), Some("3"));
        assert_eq!(parameter("rcu_nocbs", "rcu_nocbs"), Some(""));
        assert_eq!(parameter("rcu_nocbs_poll", "rcu_nocbs"), None);
        let managed = |cmdline| managed_irq_cpus(cmdline).to_string();
        assert_eq!(managed("isolcpus=managed_irq,domain,2-3,6"), "2-3,6");
        assert_eq!(managed("isolcpus=domain,2-3"), "");
        assert_eq!(
            [
                "2-3",
                "domain,2",
                "managed_irq,2",
                "nohz,domain,2",
                "nohz,managed_irq,2"
            ]
            .map(is_domain),
            [true, true, false, true, false]
        );
    }

    /// The lines of a host of KVM: `tests/data/interrupts`, whose README has their origin.
    #[test]
    fn the_tick_has_another_name_on_arm64() {
        let proc = tempfile::tempdir().unwrap();
        let text = include_str!("../../../../../tests/data/interrupts/jetson-orin");
        fs::write(proc.path().join("interrupts"), text).unwrap();
        let counts = per_cpu(proc.path(), &"4-5".parse().unwrap()).unwrap();
        assert_eq!(sum(&counts, &LOCAL_TIMERS), 64_203_809 + 66_971_399);
        let of_x86 = [("LOC", 7), ("RES", 5)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(sum(&of_x86.into(), &LOCAL_TIMERS), 7);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_no_noise() {
        let root = tempfile::tempdir().unwrap();
        let queues = root.path().join("sys/class/net/eth0/queues");
        for (queue, mask) in [("rx-0", "0000000c\n"), ("rx-1", "3\n"), ("tx-0", "ff\n")] {
            fs::create_dir_all(queues.join(queue)).unwrap();
            fs::write(queues.join(queue).join("rps_cpus"), mask).unwrap();
        }
        let noise = Noise::measure(root.path(), &"2,5".parse().unwrap()).await;
        assert_eq!((noise.timers, noise.rcu, noise.net_rx), (0.0, 0.0, 0.0));
        assert_eq!(noise.rps, [("eth0/rx-0".to_owned(), "2".parse().unwrap())].into());
    }
}
