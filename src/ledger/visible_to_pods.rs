//! Restricts an account to what the VM's pod may read: all counts, but not the names of the node's other tasks and devices. Names of
//! kernel threads that are bound to the CPUs, of softirqs and of the VM's own interrupts remain.

use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::CpuSet;
use stelia_ledger::account::Account;
use stelia_ledger::entry::{Class, Event};

/// The name of every task in a pod's account.
const TASK: &str = "another task";
/// The name of every device in a pod's account, except its VM's own.
const DEVICE: &str = "a device";

/// Kernel threads that have a CPU's number in their names (`kthread_create_on_cpu`, `kernel/workqueue.c`). Another task may have such a
/// name, which reveals nothing about it.
const BOUND_THREADS: [&str; 7] = [
    "kworker",
    "ksoftirqd",
    "migration",
    "cpuhp",
    "irq_work",
    "rcuc",
    "backlog_napi",
];

/// The account without names that the VM's pod may not read.
pub(super) fn for_pod(account: Account) -> Account {
    let mut account = account;
    let count = account
        .totals
        .devices
        .values()
        .fold(0u64, |sum, count| sum.saturating_add(*count));
    if !account.totals.devices.is_empty() {
        account.totals.devices = BTreeMap::from([(DEVICE.to_owned(), count)]);
    }
    for window in &mut account.worst {
        if window.class == Class::Devices {
            window.name = DEVICE.to_owned();
        }
    }
    account.attributions = account.attributions.into_iter().map(attribution).collect();
    account
}

/// The text about the intrusions of one entry for the VM's pod, which finds the counts in its account. `None` without intrusions.
pub(super) fn intrusions(events: &[Event]) -> Option<String> {
    let cpus_of = |wanted: Class| {
        let cpus = events.iter().filter_map(|event| match event {
            Event::Intruded { cpus, class, .. } if *class == wanted => cpus.parse::<CpuSet>().ok(),
            _ => None,
        });
        let all = cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus));
        (!all.is_empty()).then_some(all)
    };
    let tasks = cpus_of(Class::OtherTasks).map(|cpus| format!("other tasks ran on its CPUs {cpus}"));
    let devices = cpus_of(Class::Devices).map(|cpus| format!("interrupts of other devices reached its CPUs {cpus}"));
    let texts: Vec<String> = tasks.into_iter().chain(devices).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn attribution(whole: Attribution) -> Attribution {
    Attribution {
        // Operation, path and cause are for operators only.
        problems: if whole.problems.is_empty() {
            Vec::new()
        } else {
            vec!["not everything could be counted".to_owned()]
        },
        tasks: merged(whole.tasks, |name| bound_kind(name).unwrap_or(TASK).to_owned()),
        interrupts: merged(whole.interrupts, |_| DEVICE.to_owned()),
        ..whole
    }
}

/// The kind of a bound kernel thread, from its name.
fn bound_kind(comm: &str) -> Option<&str> {
    let (kind, cpu) = comm.split_once('/')?;
    let is_number = cpu.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    (is_number && BOUND_THREADS.contains(&kind)).then_some(kind)
}

/// Rename occupants, and sum those of one CPU that then have the same name.
fn merged(occupants: Vec<Occupant>, name: impl Fn(&str) -> String) -> Vec<Occupant> {
    let mut merged: BTreeMap<(u32, String), Occupant> = BTreeMap::new();
    for occupant in occupants {
        let named = name(&occupant.name);
        let sum = merged.entry((occupant.cpu, named.clone())).or_insert_with(|| Occupant {
            cpu: occupant.cpu,
            name: named,
            ns: Some(0),
            ..Occupant::default()
        });
        sum.count = sum.count.saturating_add(occupant.count);
        // The sum is unknown if a part of it is.
        sum.ns = sum.ns.zip(occupant.ns).map(|(sum, ns)| sum.saturating_add(ns));
        sum.estimated |= occupant.estimated;
    }
    merged.into_values().collect()
}

#[cfg(test)]
mod tests {
    use stelia_ledger::account::{Range, Window};

    use super::*;

    fn occupant(cpu: u32, name: &str, count: u64, ns: Option<u64>) -> Occupant {
        Occupant {
            cpu,
            name: name.to_owned(),
            count,
            ns,
            estimated: false,
        }
    }

    #[test]
    fn a_pod_reads_every_count_and_no_name_of_a_task_or_device_of_the_node() {
        let mut account = Account {
            vm: "own".to_owned(),
            ..Account::default()
        };
        account.totals.devices = [("nvme0q3".to_owned(), 4), ("eth0-rx-1".to_owned(), 3)].into();
        account.totals.own_interrupts = [("vfio-msix[0](0000:3b:00.0)".to_owned(), 9)].into();
        account.worst = vec![Window {
            cpus: "2".to_owned(),
            from_us: 1,
            until_us: 2,
            class: Class::Devices,
            name: "nvme0q3".to_owned(),
            count: Range { least: 4, most: 4 },
            delay_ns: 0,
        }];
        account.attributions = vec![Attribution {
            problems: vec!["open /sys/kernel/tracing: Permission denied".to_owned()],
            tasks: vec![
                occupant(2, "bash", 3, Some(5)),
                occupant(2, "payroll", 4, Some(6)),
                occupant(2, "kworker/2:1H", 1, Some(1)),
                occupant(3, "kworker/evil-name", 1, None),
            ],
            interrupts: vec![occupant(2, "30 nvme0q3", 4, None)],
            softirqs: vec![occupant(2, "net_rx", 1, Some(2))],
            ..Attribution::default()
        }];
        let restricted = for_pod(account);
        assert_eq!(restricted.totals.devices, [("a device".to_owned(), 7)].into());
        assert_eq!(restricted.worst[0].count.least, 4);
        let named = &restricted.attributions[0];
        let expected = vec![
            occupant(2, "another task", 7, Some(11)),
            occupant(2, "kworker", 1, Some(1)),
            occupant(3, "another task", 1, None),
        ];
        assert_eq!(named.tasks, expected);
        assert_eq!(named.softirqs, [occupant(2, "net_rx", 1, Some(2))]);
        let text = serde_json::to_string(&restricted).unwrap();
        for name in ["bash", "payroll", "evil", "nvme", "eth0", "tracing"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("vfio-msix"), "names of its own devices remain");
    }

    #[test]
    fn a_pod_reads_the_cpus_of_an_intrusion_without_a_name_or_a_count() {
        let event = |cpus: &str, class, name: &str| Event::Intruded {
            vm: "own".to_owned(),
            cpus: cpus.to_owned(),
            class,
            name: name.to_owned(),
            count: (3, 4),
        };
        let events = [
            event("2", Class::OtherTasks, ""),
            event("3", Class::Devices, "nvme0q3"),
            event("5", Class::OtherTasks, ""),
        ];
        let expected = "other tasks ran on its CPUs 2,5; interrupts of other devices reached its CPUs 3";
        assert_eq!(intrusions(&events).as_deref(), Some(expected));
        assert_eq!(intrusions(&[]), None);
    }
}
