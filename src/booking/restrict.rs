//! What a pod may know of its own VM's account: every count, and no name of what else is on the node. Kernel threads that are bound to the
//! CPUs, softirqs and the VM's own interrupts are the kernel's words, and told.

use std::collections::BTreeMap;

use stelia_api::attribution::{Attribution, Doer};
use stelia_cpus::CpuSet;
use stelia_ledger::account::Account;
use stelia_ledger::entry::{Class, Event};

const TASK: &str = "another task";
const DEVICE: &str = "a device";

/// The kernel's threads with a CPU's number in their names, as in `kthread_create_on_cpu` and `kernel/workqueue.c`. A task that gives itself
/// such a name has told no more than that.
const BOUND: [&str; 7] = [
    "kworker",
    "ksoftirqd",
    "migration",
    "cpuhp",
    "irq_work",
    "rcuc",
    "backlog_napi",
];

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

/// What the events of one entry say to the pod whose CPUs they are of; how often it was is in its account. `None`: nothing.
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
    let told: Vec<String> = tasks.into_iter().chain(devices).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn attribution(told: Attribution) -> Attribution {
    Attribution {
        // Operation, path and cause are the operator's.
        problems: match told.problems.is_empty() {
            true => Vec::new(),
            false => vec!["not everything could be counted".to_owned()],
        },
        tasks: merged(told.tasks, |name| bound(name).unwrap_or(TASK).to_owned()),
        interrupts: merged(told.interrupts, |_| DEVICE.to_owned()),
        ..told
    }
}

/// The kind of a bound thread of the kernel's.
fn bound(comm: &str) -> Option<&str> {
    let (kind, cpu) = comm.split_once('/')?;
    let is_number = cpu.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    (is_number && BOUND.contains(&kind)).then_some(kind)
}

/// Those of one CPU that have one name now are one.
fn merged(doers: Vec<Doer>, name: impl Fn(&str) -> String) -> Vec<Doer> {
    let mut of: BTreeMap<(u32, String), Doer> = BTreeMap::new();
    for doer in doers {
        let named = name(&doer.name);
        let sum = of.entry((doer.cpu, named.clone())).or_insert_with(|| Doer {
            cpu: doer.cpu,
            name: named,
            ns: Some(0),
            ..Doer::default()
        });
        sum.count = sum.count.saturating_add(doer.count);
        // Of which a part was not measured, the sum was not.
        sum.ns = sum.ns.zip(doer.ns).map(|(sum, ns)| sum.saturating_add(ns));
        sum.estimated |= doer.estimated;
    }
    of.into_values().collect()
}

#[cfg(test)]
mod tests {
    use stelia_ledger::account::{Range, Window};

    use super::*;

    fn doer(cpu: u32, name: &str, count: u64, ns: Option<u64>) -> Doer {
        Doer {
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
        let told = for_pod(account);
        assert_eq!(told.totals.devices, [("a device".to_owned(), 7)].into());
        assert_eq!(told.worst[0].count.least, 4);
        let named = &told.attributions[0];
        let expected = vec![
            doer(2, "another task", 7, Some(11)),
            doer(2, "kworker", 1, Some(1)),
            doer(3, "another task", 1, None),
        ];
        assert_eq!(named.tasks, expected);
        assert_eq!(named.softirqs, [doer(2, "net_rx", 1, Some(2))]);
        let text = serde_json::to_string(&told).unwrap();
        for name in ["bash", "payroll", "evil", "nvme", "eth0", "tracing"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("vfio-msix"), "its own device is its own business");
    }

    #[test]
    fn an_intrusion_is_told_by_cpus_without_a_name_or_a_count() {
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
        let told = "other tasks ran on its CPUs 2,5; interrupts of other devices reached its CPUs 3";
        assert_eq!(intrusions(&events).as_deref(), Some(told));
        assert_eq!(intrusions(&[]), None);
    }
}
