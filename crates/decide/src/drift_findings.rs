//! What changed between two looks at the system in files that only this program writes.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;

use super::{Instance, Level, Outside, Slice, ThreadedCgroup, Whom};

/// One value that another program changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub whom: Whom,
    /// The file and its cgroup, or the property of a thread.
    pub what: String,
    /// The value that was there before.
    pub expected: String,
    /// The value that is there now.
    pub found: String,
}

/// What differs in an instance since the look that gave `before`, whose container has this entry in kubelet's file. Nothing is compared when
/// its record changed meanwhile.
pub fn of_instance(before: &Instance, now: &Instance, entry: Option<&CpuSet>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if before.populated && now.populated && before.tree == now.tree && before.record == now.record {
        compare(before, now, entry, &mut findings);
    }
    findings
}

/// What differs in stelia.slice and of the kernel's workers. `before` belongs to the same set of instances.
pub fn of_slice(before: &Slice, now: &Slice) -> Vec<Finding> {
    // The file appears, empty, with the first scope.
    let list = |slice: &Slice| slice.exclusive.clone().unwrap_or_default();
    let (was, is) = (list(before), list(now));
    let mut findings = Vec::new();
    let mut differ = |what: &str, was: &CpuSet, is: &CpuSet| {
        findings.push(Finding {
            whom: Whom::Node,
            what: what.into(),
            expected: was.to_string(),
            found: is.to_string(),
        });
    };
    if was != is {
        differ("cpuset.cpus.exclusive of stelia.slice", &was, &is);
    }
    if let (Some(was), Some(is)) = (&before.workers, &now.workers)
        && !is.cpus.is_disjoint(&was.withheld.difference(&was.cpus))
    {
        differ("cpumask of the kernel's unbound workers", &was.cpus, &is.cpus);
    }
    findings
}

/// CPUs of instances in place that another program removed from the list of the cgroup that all pods are in.
pub fn of_kubepods(before: Option<&Level>, now: Option<&Level>) -> Option<Finding> {
    let (before, now) = (before?, now?);
    // What this program records about it changes with the list, and only by its own hand. The file itself goes with the last pod.
    let removed = !now.ours.is_empty() && before.ours == now.ours && before.has(&now.ours) && !now.has(&now.ours);
    let list = |level: &Level| level.exclusive.clone().unwrap_or_default().to_string();
    removed.then(|| Finding {
        whom: Whom::Node,
        what: format!("cpuset.cpus.exclusive of {}", now.path.name()),
        expected: list(before),
        found: list(now),
    })
}

/// What differs in the units outside stelia.slice that are restricted.
pub fn of_outside(before: &BTreeMap<String, Outside>, now: &BTreeMap<String, Outside>) -> Vec<Finding> {
    let differs = |(unit, now): (&String, &Outside)| {
        let before = before.get(unit).filter(|before| before.saved.is_some())?;
        (before.cpus != now.cpus).then(|| Finding {
            whom: Whom::Node,
            what: format!("cpuset.cpus of {unit}"),
            expected: before.cpus.to_string(),
            found: now.cpus.to_string(),
        })
    };
    now.iter().filter_map(differs).collect()
}

fn compare(before: &Instance, now: &Instance, entry: Option<&CpuSet>, findings: &mut Vec<Finding>) {
    let mut differ = |what: String, expected: String, found: String| {
        if expected != found {
            findings.push(Finding {
                whom: Whom::Instance(now.record.pod.clone()),
                what,
                expected,
                found,
            });
        }
    };
    let container = !before.tree.has_float();
    let of_vcpus = if container { "the container" } else { "vcpu" };
    for (name, was, is) in [
        ("float", before.float(), now.float()),
        (of_vcpus, before.vcpu(), now.vcpu()),
    ] {
        if container && was.is_none() && is.is_none() {
            continue;
        }
        let (Some(was), Some(is)) = (was, is) else {
            differ(name.into(), was.is_some().to_string(), is.is_some().to_string());
            continue;
        };
        let values = |cgroup: &ThreadedCgroup| {
            [
                ("cpuset.cpus", cgroup.cpus.to_string()),
                ("cpuset.cpus.exclusive", cgroup.exclusive.to_string()),
                ("cpuset.cpus.partition", cgroup.partition.clone()),
                ("cpu.max", cgroup.cpu_max.clone()),
                (
                    "cgroup.max.descendants",
                    cgroup.max_descendants.clone().unwrap_or_else(|| "0".into()),
                ),
            ]
        };
        let (was_below, is_below) = (was.below.len(), is.below.len());
        // A container's own list and limit are kubelet's: see below.
        let is_ours = |file: &str| !container || !matches!(file, "cpuset.cpus" | "cpu.max");
        for ((file, was), (_, is)) in values(was).into_iter().zip(values(is)) {
            if is_ours(file) {
                differ(format!("{file} of {name}"), was, is);
            }
        }
        differ(
            format!("cgroups below {name}"),
            was_below.to_string(),
            is_below.to_string(),
        );
    }
    for ((thread, was), is) in before.record.vcpus.iter().zip(&before.vcpus).zip(&now.vcpus) {
        let (Some(was), Some(is)) = (was, is) else { continue };
        let what = |what: &str| format!("{what} of thread {} ({})", thread.task.id, thread.role);
        // A container whose own cgroup is the partition may have cgroups below it.
        if !(container && now.has(&is.cgroup)) {
            differ(what("the cgroup"), was.cgroup.to_string(), is.cgroup.to_string());
        }
        // Where others may pin the vCPUs, another one of the instance's CPUs is no drift.
        let keeps = before.record.keeps_pins();
        if container && (keeps || thread.cpu.is_none()) {
            continue;
        }
        if !(keeps && is.affinity.len() == 1 && is.affinity.is_subset(&before.record.exclusive)) {
            differ(what("the affinity"), was.affinity.to_string(), is.affinity.to_string());
        }
    }
    // A thread that is new in `vcpu/` was created there (KVM creates threads from a vCPU's): moving it to float is not
    // drift.
    let moved = threads(now.vcpu()).filter(|tid| threads(before.float()).any(|was| was == *tid));
    let moved = moved.filter(|tid| before.record.vcpus.iter().all(|vcpu| vcpu.task.id != *tid));
    differ(
        "threads moved into vcpu that are no vCPU".into(),
        0.to_string(),
        moved.count().to_string(),
    );
    // kubelet may resize the container; a list that differs from its entry was written by another program. The record follows the entry, but
    // not as long as the VM waits for its vCPUs to be unplugged. A container that ended has no list.
    let is_kubelets = now.origin_cpus == now.record.entry || entry == Some(&now.origin_cpus);
    if now.origin_procs.is_some() && !is_kubelets {
        differ(
            "cpuset.cpus of the container's own cgroup".into(),
            before.origin_cpus.to_string(),
            now.origin_cpus.to_string(),
        );
    }
}

fn threads(leaf: Option<&ThreadedCgroup>) -> impl Iterator<Item = i32> {
    leaf.into_iter().flat_map(|leaf| leaf.threads.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::tests::isolated;

    #[test]
    fn what_somebody_else_changed_is_named_once_with_both_values() {
        let mut before = isolated();
        before
            .first_mut()
            .inner
            .as_mut()
            .unwrap()
            .float
            .as_mut()
            .unwrap()
            .threads
            .push(99);
        assert_eq!(of_instance(before.first(), before.first(), None), []);
        let mut found = before.clone();
        let vcpu = found.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
        vcpu.partition = "member".into();
        vcpu.threads.push(99);
        found.first_mut().vcpus[1].as_mut().unwrap().affinity = "2-3".parse().unwrap();
        let told: Vec<(String, String, String)> = of_instance(before.first(), found.first(), None)
            .into_iter()
            .map(|finding| (finding.what, finding.expected, finding.found))
            .collect();
        let expect = |what: &str, was: &str, is: &str| (what.to_owned(), was.to_owned(), is.to_owned());
        assert_eq!(
            told,
            [
                expect("cpuset.cpus.partition of vcpu", "isolated", "member"),
                expect("the affinity of thread 51 (vCPU 1)", "3", "2-3"),
                expect("threads moved into vcpu that are no vCPU", "0", "1"),
            ]
        );
    }

    #[test]
    fn what_kubelet_wrote_is_no_drift_while_a_vm_waits_for_its_vcpus() {
        let before = isolated();
        let mut found = before.clone();
        let fewer: CpuSet = "2".parse().unwrap();
        found.first_mut().origin_cpus = fewer.clone();
        let of = |entry: Option<&CpuSet>| of_instance(before.first(), found.first(), entry).len();
        assert_eq!(of(Some(&fewer)), 0);
        assert_eq!((of(Some(&before.first().record.entry)), of(None)), (1, 1));
    }

    #[test]
    fn a_thread_born_among_the_vcpus_is_no_drift() {
        let before = isolated();
        let mut found = before.clone();
        let vcpu = found.first_mut().inner.as_mut().unwrap().vcpu.as_mut().unwrap();
        vcpu.threads.push(99);
        assert_eq!(of_instance(before.first(), found.first(), None), []);
    }

    #[test]
    fn cpus_that_are_missing_in_the_list_of_all_pods_are_drift_and_the_end_of_the_last_pod_is_none() {
        let cpus = |text: &str| -> CpuSet { text.parse().unwrap() };
        let path = stelia_kernel::cgroup::CgroupPath::parse("/kubepods.slice").unwrap();
        let level = |listed: Option<&str>, ours: &str| Level {
            path: path.clone(),
            exclusive: listed.map(cpus),
            ours: cpus(ours),
        };
        let of = |before: &Level, now: &Level| of_kubepods(Some(before), Some(now));
        let finding = of(&level(Some("2-3"), "2-3"), &level(Some("2"), "2-3")).unwrap();
        assert_eq!((finding.expected.as_str(), finding.found.as_str()), ("2-3", "2"));
        assert_eq!(of(&level(Some("2-3"), "2-3"), &level(Some("2-3"), "2-3")), None);
        assert_eq!(of(&level(Some(""), ""), &level(None, "")), None);
    }
}
