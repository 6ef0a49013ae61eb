//! cpufreq's governor. The CPUs of a policy share it (Documentation/admin-guide/pm/cpufreq.rst), so it is set where all of
//! them are the same VM's only.

use std::collections::BTreeMap;

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

use super::{CPUS, Change, Decision, Write, read};
use crate::failure::{Failure, problem};
use crate::files::Files;
use crate::order::{Order, Vm};

fn path(policy: &str, file: &str) -> String {
    format!("{CPUS}/cpufreq/{policy}/{file}")
}

/// What a policy's governor becomes. There is no tighter or looser here: the order holds.
fn decide(record: Option<&Change>, now: &str, want: &str) -> Decision {
    match record {
        Some(change) if now == want && now == change.ours => Decision::keep(Some(change)),
        _ if now == want => Decision::keep(None),
        Some(change) if now == change.ours && want == change.base => Decision::undo(change, now),
        Some(change) if now == change.ours => Decision::change(&change.base, want),
        _ => Decision::change(now, want),
    }
}

/// The writes for all policies; `record` becomes what it is after them.
pub(super) fn plan(
    files: &dyn Files,
    order: &Order,
    record: &mut BTreeMap<String, Change>,
    report: &mut Report,
) -> Vec<Write> {
    let (mut writes, mut covered) = (Vec::new(), Vec::new());
    for (pod, vm) in &order.vms {
        let Some(want) = &vm.governor else { continue };
        let policies = match policies(files, vm) {
            Ok(policies) => policies,
            Err(failure) => {
                problem(report, pod, format!("governor {want:?}: {failure}"));
                continue;
            }
        };
        for policy in policies {
            match usable(files, vm, &policy, want) {
                Ok(now) => {
                    let decision = decide(record.get(&policy), &now, want);
                    covered.push(policy.clone());
                    take(&policy, decision, pod, record, &mut writes);
                }
                Err(why) => problem(report, pod, format!("governor {want:?}: {why}")),
            }
        }
    }
    let left: Vec<String> = record
        .keys()
        .filter(|policy| !covered.contains(policy))
        .cloned()
        .collect();
    for policy in left {
        let decision = match (record.get(&policy), read(files, &path(&policy, "scaling_governor"))) {
            (Some(change), Ok(now)) => Decision::undo(change, &now),
            // A policy ends with its last CPU, and a new one begins with the default.
            _ => Decision::keep(None),
        };
        take(&policy, decision, "", record, &mut writes);
    }
    writes
}

fn take(policy: &str, decision: Decision, pod: &str, record: &mut BTreeMap<String, Change>, writes: &mut Vec<Write>) {
    match decision.record {
        Some(change) => record.insert(policy.to_owned(), change),
        None => record.remove(policy),
    };
    writes.extend(decision.write.map(|value| Write {
        pod: pod.to_owned(),
        path: path(policy, "scaling_governor"),
        value,
    }));
}

/// The policies of a VM's CPUs, each once.
fn policies(files: &dyn Files, vm: &Vm) -> Result<Vec<String>, Failure> {
    let (mut policies, mut seen): (Vec<String>, CpuSet) = (Vec::new(), CpuSet::new());
    for cpu in vm.cpus.iter().collect::<Vec<_>>() {
        if seen.contains(cpu) {
            continue;
        }
        let link = format!("{CPUS}/cpu{cpu}/cpufreq");
        let policy = files.link(&link).map_err(Failure::of("read", &link))?;
        seen.union_with(&members(files, &policy)?);
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    Ok(policies)
}

/// The CPUs of a policy that are online, which the kernel separates by spaces.
fn members(files: &dyn Files, policy: &str) -> Result<CpuSet, Failure> {
    let text = read(files, &path(policy, "affected_cpus"))?;
    Ok(text.split_whitespace().filter_map(|cpu| cpu.parse().ok()).collect())
}

/// The policy's governor, if it may be set for this VM; else why not.
fn usable(files: &dyn Files, vm: &Vm, policy: &str, want: &str) -> Result<String, String> {
    let of = |failure: Failure| failure.to_string();
    let foreign = members(files, policy).map_err(of)?.difference(&vm.cpus);
    if !foreign.is_empty() {
        return Err(format!(
            "{policy} also has CPUs {foreign}, which are not this VM's, and the CPUs of a policy share the governor"
        ));
    }
    let available = read(files, &path(policy, "scaling_available_governors")).map_err(of)?;
    if !available.split_whitespace().any(|name| name == want) {
        return Err(format!("{policy} has only {available}"));
    }
    read(files, &path(policy, "scaling_governor")).map_err(of)
}
