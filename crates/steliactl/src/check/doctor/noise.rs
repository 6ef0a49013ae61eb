//! Checks of what only a boot, or the administrator, can still take off the CPUs of VMs; each with what it would gain here, measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use stelia_api::quiet::{Remaining, RemainingCause};
use stelia_cpus::CpuSet;

use super::{Facts, Finding, note, pass};
use crate::shared::daemon::Description;
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
pub(super) struct Noise {
    pub(super) cpus: CpuSet,
    /// `LOC` of `/proc/interrupts`, on arm64 `arch_timer`: the tick, and timers of KVM for the guest.
    pub(super) timers: f64,
    /// `RCU` of `/proc/softirqs`.
    pub(super) rcu: f64,
    /// `NET_RX` of `/proc/softirqs`.
    pub(super) net_rx: f64,
    /// Receive queues whose `rps_cpus` has CPUs of VMs, with these.
    pub(super) rps: BTreeMap<String, CpuSet>,
}

impl Noise {
    /// Measures the CPUs of the VMs; `None` where they have none. `root` is `/`.
    pub(super) async fn measure(root: &Path, described: &Description) -> Option<Self> {
        let vms = described.node.instances.values();
        let cpus = vms.fold(CpuSet::new(), |all, one| all.union(&one.exclusive));
        if cpus.is_empty() {
            return None;
        }
        let proc = root.join("proc");
        let counts = || {
            let (interrupts, softirqs) = (per_cpu(&proc, &cpus), softirqs(&proc, &cpus));
            [
                sum(interrupts.as_ref(), &LOCAL_TIMERS),
                sum(softirqs.as_ref(), &["RCU"]),
                sum(softirqs.as_ref(), &["NET_RX"]),
            ]
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
        Some(Self {
            timers: rate(0),
            rcu: rate(1),
            net_rx: rate(2),
            rps: steered_queues(&root.join("sys/class/net"), &cpus),
            cpus,
        })
    }
}

/// The counts of these lines together; one that is not there counted nothing yet.
fn sum(counts: Option<&BTreeMap<String, u64>>, names: &[&str]) -> Option<u64> {
    Some(names.iter().filter_map(|name| counts?.get(*name)).sum()).filter(|_| counts.is_some())
}

/// The receive queues that are steered to these CPUs, as `eth0/rx-0` (Documentation/networking/scaling.rst).
fn steered_queues(net: &Path, cpus: &CpuSet) -> BTreeMap<String, CpuSet> {
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
    let decimals = usize::from(rate < 10.0);
    format!("{rate:.decimals$}")
}

/// A parameter whose list should have the VMs' CPUs, and what fires `rate` times a second on each of them without it.
fn boot_parameter(noise: &Noise, has: &CpuSet, rate: f64, what: &str, fix: impl Into<String>) -> Finding {
    let rates = format!("{} {what} a second on each", a_second(rate));
    let without = noise.cpus.difference(has);
    if without.is_empty() {
        pass(format!("has the VMs' CPUs {}; {rates}", noise.cpus))
    } else if rate < 0.1 {
        pass("not set; no benefit measured")
    } else {
        note(format!("lacks the VMs' CPUs {without}: {rates}")).fix(fix)
    }
}

pub(super) fn nohz_full(facts: &Facts, noise: &Noise) -> Finding {
    if parameter(&facts.cmdline, "nohz_full").is_some() && facts.nohz_full.is_empty() {
        return note("set, but this kernel does not support it").fix("install a kernel with CONFIG_NO_HZ_FULL");
    }
    let fix = format!(
        "boot with nohz_full={}; the timers that KVM sets for the guest stay, and entering the kernel costs a little more",
        wanted(facts, noise)
    );
    boot_parameter(noise, &facts.nohz_full, noise.timers, "local timer interrupts", fix)
}

pub(super) fn rcu_nocbs(facts: &Facts, noise: &Noise) -> Finding {
    let has = match parameter(&facts.cmdline, "rcu_nocbs") {
        // Without a list, and as "all", it is every CPU.
        Some("" | "all") => noise.cpus.clone(),
        Some(list) => match list.parse::<CpuSet>() {
            Ok(cpus) => cpus,
            Err(_) => return pass(format!("set to {list}")),
        },
        None => CpuSet::new(),
    };
    let fix = format!(
        "boot with rcu_nocbs={}, or with nohz_full=, which includes it",
        wanted(facts, noise)
    );
    // As Documentation/admin-guide/kernel-parameters.txt says.
    let has = has.union(&facts.nohz_full);
    boot_parameter(noise, &has, noise.rcu, "RCU softirqs", fix)
}

pub(super) fn managed_irq(facts: &Facts, noise: &Noise) -> Finding {
    if noise.cpus.is_subset(&managed_irq_cpus(&facts.cmdline)) {
        return pass(format!("isolcpus=managed_irq has the VMs' CPUs {}", noise.cpus));
    }
    let remaining = facts
        .described
        .iter()
        .flat_map(|told| &told.node.quiet.report.remaining);
    let managed: Vec<&Remaining> = remaining.filter(|one| one.why == RemainingCause::Managed).collect();
    let fired = managed.iter().fold(0, |sum: u64, one| sum.saturating_add(one.count));
    if fired == 0 {
        let count = counted(managed.len() as u64, "managed interrupt");
        return pass(format!("not set; no benefit measured ({count} can reach VMs' CPUs)"));
    }
    let names = managed.iter().filter(|one| one.count > 0).map(|one| one.name.as_str());
    let cpus = managed.iter().fold(CpuSet::new(), |all, one| all.union(&one.cpus));
    note(format!(
        "managed interrupts fired {fired} times on the VMs' CPUs {cpus}: {}",
        first(names)
    ))
    .fix(format!(
        "boot with isolcpus=managed_irq,{} and no other flag; PCI queues that have other CPUs too then leave these",
        wanted(facts, noise)
    ))
}

pub(super) fn rps(_: &Facts, noise: &Noise) -> Finding {
    if noise.rps.is_empty() {
        return pass("no receive queue is steered to VMs' CPUs");
    }
    let cpus = noise.rps.values().fold(CpuSet::new(), |all, some| all.union(some));
    note(format!(
        "receive queues are steered to the VMs' CPUs {cpus}: {}; {} NET_RX softirqs a second on each",
        first(noise.rps.keys().map(String::as_str)),
        a_second(noise.net_rx)
    ))
    .fix("write masks without these CPUs to /sys/class/net/DEVICE/queues/rx-N/rps_cpus")
}

/// The first names, and how many more.
fn first<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_at_checked(MAX_NAMED) {
        Some((shown, more)) if !more.is_empty() => format!("{} and {} more", shown.join(", "), more.len()),
        _ => names.join(", "),
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
fn managed_irq_cpus(cmdline: &str) -> CpuSet {
    let value = parameter(cmdline, "isolcpus").unwrap_or_default();
    if value.split(',').any(|part| part == "managed_irq") {
        isolcpus_list(value)
    } else {
        CpuSet::new()
    }
}

/// The CPUs of a value of `isolcpus=`, without its flags.
fn isolcpus_list(value: &str) -> CpuSet {
    let parts = value.split(',').filter_map(|part| part.parse::<CpuSet>().ok());
    parts.fold(CpuSet::new(), |all, some| all.union(&some))
}

/// The CPUs that `isolcpus=` takes out of the scheduler's balancing: it has the flag domain, or no flag. The list in /sys includes those of
/// partitions.
pub(super) fn domain_cpus(cmdline: &str) -> CpuSet {
    let values = cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("isolcpus="));
    let domain = values.filter(|value| {
        let flags = value
            .split(',')
            .filter(|part| part.starts_with(|c: char| c.is_ascii_alphabetic()));
        let flags: Vec<&str> = flags.collect();
        flags.is_empty() || flags.contains(&"domain")
    });
    domain.fold(CpuSet::new(), |all, value| all.union(&isolcpus_list(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::write;

    #[test]
    fn the_last_of_a_parameter_counts_and_flags_are_no_cpus() {
        assert_eq!(parameter("quiet nohz_full=2 nohz_full=3", "nohz_full"), Some("3"));
        assert_eq!(parameter("rcu_nocbs", "rcu_nocbs"), Some(""));
        assert_eq!(parameter("rcu_nocbs_poll", "rcu_nocbs"), None);
        let managed = |cmdline| managed_irq_cpus(cmdline).to_string();
        assert_eq!(managed("isolcpus=managed_irq,domain,2-3,6"), "2-3,6");
        assert_eq!(managed("isolcpus=domain,2-3"), "");
        for (value, domain) in [
            ("2-3", "2-3"),
            ("domain,2", "2"),
            ("managed_irq,2", ""),
            ("nohz,domain,2,4", "2,4"),
            ("nohz,managed_irq,2", ""),
        ] {
            assert_eq!(
                domain_cpus(&format!("quiet isolcpus={value}")).to_string(),
                domain,
                "{value}"
            );
        }
    }

    /// The lines of a host of KVM: `tests/data/interrupts`, whose README has their origin.
    #[test]
    fn the_tick_has_another_name_on_arm64() {
        let proc = tempfile::tempdir().unwrap();
        let text = include_str!("../../../../../tests/data/interrupts/jetson-orin");
        write(proc.path(), "interrupts", text);
        let counts = per_cpu(proc.path(), &"4-5".parse().unwrap());
        assert_eq!(sum(counts.as_ref(), &LOCAL_TIMERS), Some(64_203_809 + 66_971_399));
        let of_x86 = [("LOC", 7), ("RES", 5)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(sum(Some(&of_x86.into()), &LOCAL_TIMERS), Some(7));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_no_noise() {
        let root = tempfile::tempdir().unwrap();
        for (queue, mask) in [("rx-0", "0000000c\n"), ("rx-1", "3\n"), ("tx-0", "ff\n")] {
            write(
                root.path(),
                &format!("sys/class/net/eth0/queues/{queue}/rps_cpus"),
                mask,
            );
        }
        let mut described = node();
        described.node.instances.retain(|uid, _| uid.as_str() == PODS[0]);
        instance_mut(&mut described, PODS[0]).exclusive = "2,5".parse().unwrap();
        let noise = Noise::measure(root.path(), &described).await.unwrap();
        assert_eq!((noise.timers, noise.rcu, noise.net_rx), (0.0, 0.0, 0.0));
        assert_eq!(noise.rps, [("eth0/rx-0".to_owned(), "2".parse().unwrap())].into());
        described.node.instances.clear();
        assert_eq!(Noise::measure(root.path(), &described).await, None);
    }
}
