//! What a pod may read of its own VM's account: every count, but no name of other tasks and devices of the node. Names of kernel threads
//! that are bound to the CPUs, of softirqs and of the VM's own interrupts come from the kernel, and stay.

use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Occupant};
use stelia_cpus::CpuSet;
use stelia_ledger::account::Account;
use stelia_ledger::entry::{Class, Event};

/// The name of every task in a pod's account.
const TASK: &str = "another task";
/// The name of every device in a pod's account, except its VM's own.
const DEVICE: &str = "a device";

/// Kernel threads that have a CPU's number in their names (`kthread_create_on_cpu`, `kernel/workqueue.c`). A task that gives itself such a
/// name reveals no more than this.
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
    account.totals.devices = match account.totals.devices.is_empty() {
        true => BTreeMap::new(),
        false => BTreeMap::from([(DEVICE.to_owned(), count)]),
    };
    for window in &mut account.worst {
        if window.class == Class::Devices {
            window.name = DEVICE.to_owned();
        }
    }
    account.attributions = account.attributions.into_iter().map(attribution).collect();
    account
}

/// The text about the intrusions of one entry for the pod whose CPUs they are on; the counts are in its account. `None` without intrusions.
pub(super) fn intrusions(events: &[Event]) -> Option<String> {
    let on = |of: Class| {
        let cpus = events.iter().filter_map(|event| match event {
            Event::Intruded { cpus, class, .. } if *class == of => cpus.parse::<CpuSet>().ok(),
            _ => None,
        });
        let all = cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus));
        (!all.is_empty()).then_some(all)
    };
    let tasks = on(Class::OtherTasks).map(|cpus| format!("other tasks ran on its CPUs {cpus}"));
    let devices = on(Class::Devices).map(|cpus| format!("interrupts of other devices reached its CPUs {cpus}"));
    let texts: Vec<String> = tasks.into_iter().chain(devices).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn attribution(whole: Attribution) -> Attribution {
    Attribution {
        // Operation, path and cause are for operators only.
        problems: match whole.problems.is_empty() {
            true => Vec::new(),
            false => vec!["not everything could be counted".to_owned()],
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

/// Rename them, and add up those of one CPU that have the same name afterwards.
fn merged(doers: Vec<Occupant>, name: impl Fn(&str) -> String) -> Vec<Occupant> {
    let mut merged: BTreeMap<(u32, String), Occupant> = BTreeMap::new();
    for doer in doers {
        let named = name(&doer.name);
        let sum = merged.entry((doer.cpu, named.clone())).or_insert_with(|| Occupant {
            cpu: doer.cpu,
            name: named,
            ns: Some(0),
            ..Occupant::default()
        });
        sum.count = sum.count.saturating_add(doer.count);
        // The sum is unknown where a part of it is.
        sum.ns = sum.ns.zip(doer.ns).map(|(sum, ns)| sum.saturating_add(ns));
        sum.estimated |= doer.estimated;
    }
    merged.into_values().collect()
}

#[cfg(test)]
mod tests {
    use stelia_ledger::account::{Range, Window};

    use super::*;

    fn doer(cpu: u32, name: &str, count: u64, ns: Option<u64>) -> Occupant {
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
                doer(2, "bash", 3, Some(5)),
                doer(2, "payroll", 4, Some(6)),
                doer(2, "kworker/2:1H", 1, Some(1)),
                doer(3, "kworker/evil-name", 1, None),
            ],
            interrupts: vec![doer(2, "30 nvme0q3", 4, None)],
            softirqs: vec![doer(2, "net_rx", 1, Some(2))],
            ..Attribution::default()
        }];
        let restricted = for_pod(account);
        assert_eq!(restricted.totals.devices, [("a device".to_owned(), 7)].into());
        assert_eq!(restricted.worst[0].count.least, 4);
        let named = &restricted.attributions[0];
        let expected = vec![
            doer(2, "another task", 7, Some(11)),
            doer(2, "kworker", 1, Some(1)),
            doer(3, "another task", 1, None),
        ];
        assert_eq!(named.tasks, expected);
        assert_eq!(named.softirqs, [doer(2, "net_rx", 1, Some(2))]);
        let text = serde_json::to_string(&restricted).unwrap();
        for name in ["bash", "payroll", "evil", "nvme", "eth0", "tracing"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("vfio-msix"), "its own device is its own business");
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
