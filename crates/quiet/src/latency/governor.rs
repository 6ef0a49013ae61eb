//! cpufreq's governor. The CPUs of a policy share it (Documentation/admin-guide/pm/cpufreq.rst), so it is set where all of
//! them are the same VM's only.

use std::collections::BTreeMap;

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

use super::{CPUS, Change, Decision, Write, is_gone, read};
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
    let (mut writes, mut covered, mut unknown) = (Vec::new(), Vec::new(), CpuSet::new());
    for (pod, vm) in &order.vms {
        let Some(want) = &vm.governor else { continue };
        let found = policies(files, vm);
        if let Some((first, others)) = found.failures.split_first() {
            let more = match others.len() {
                0 => String::new(),
                count => format!(", and {count} more"),
            };
            problem(report, pod, format!("governor {want:?}: {first}{more}"));
        }
        // What cannot be read is not known to be unwanted.
        covered.extend(found.unread);
        unknown.union_with(&found.unknown);
        for policy in found.policies {
            match usable(files, vm, &policy, want) {
                Ok(now) => {
                    let decision = decide(record.get(&policy), &now, want);
                    covered.push(policy.clone());
                    take(&policy, decision, pod, record, &mut writes);
                }
                Err(Unusable::Not(why)) => problem(report, pod, format!("governor {want:?}: {why}")),
                Err(Unusable::Unread(failure)) => {
                    problem(report, pod, format!("governor {want:?}: {failure}"));
                    covered.push(policy);
                }
            }
        }
    }
    let left: Vec<String> = record
        .keys()
        .filter(|policy| !covered.contains(policy))
        .cloned()
        .collect();
    for policy in left {
        // A CPU whose policy is not known may be of this one.
        let may_be_wanted = !unknown.is_empty()
            && match members(files, &policy) {
                Ok(members) => !members.is_disjoint(&unknown),
                Err(failure) => !is_gone(&failure),
            };
        let decision = match (record.get(&policy), read(files, &path(&policy, "scaling_governor"))) {
            (change, _) if may_be_wanted => Decision::keep(change),
            (Some(change), Ok(now)) => Decision::undo(change, &now),
            // While all its CPUs are offline it cannot be read, and has the same governor when one is back (`last_governor` in
            // drivers/cpufreq/cpufreq.c).
            (change, Err(failure)) if !is_gone(&failure) => Decision::keep(change),
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

/// The policies of a VM's CPUs.
#[derive(Default)]
struct Policies {
    /// Each once.
    policies: Vec<String>,
    /// Those of which it cannot be read which CPUs they have.
    unread: Vec<String>,
    /// CPUs of which it cannot be read which policy they have.
    unknown: CpuSet,
    failures: Vec<Failure>,
}

/// What cannot be read of one CPU leaves all others as they are.
fn policies(files: &dyn Files, vm: &Vm) -> Policies {
    let (mut found, mut seen) = (Policies::default(), CpuSet::new());
    for cpu in vm.cpus.iter() {
        if seen.contains(cpu) {
            continue;
        }
        let link = format!("{CPUS}/cpu{cpu}/cpufreq");
        let policy = match files.link(&link).map_err(Failure::of("read", &link)) {
            Ok(policy) => policy,
            Err(failure) => {
                found.unknown.insert(cpu);
                found.failures.push(failure);
                continue;
            }
        };
        if found.policies.contains(&policy) || found.unread.contains(&policy) {
            continue;
        }
        match members(files, &policy) {
            Ok(members) => {
                seen.union_with(&members);
                found.policies.push(policy);
            }
            Err(failure) => {
                found.unread.push(policy);
                found.failures.push(failure);
            }
        }
    }
    found
}

/// The CPUs of a policy that are online, which the kernel separates by spaces.
fn members(files: &dyn Files, policy: &str) -> Result<CpuSet, Failure> {
    let text = read(files, &path(policy, "affected_cpus"))?;
    Ok(text.split_whitespace().filter_map(|cpu| cpu.parse().ok()).collect())
}

/// Why a policy's governor is not set.
enum Unusable {
    /// It may not be, or the machine has no such governor.
    Not(String),
    /// That is not known.
    Unread(Failure),
}

/// The policy's governor, if it may be set for this VM; else why not.
fn usable(files: &dyn Files, vm: &Vm, policy: &str, want: &str) -> Result<String, Unusable> {
    let foreign = members(files, policy).map_err(Unusable::Unread)?.difference(&vm.cpus);
    if !foreign.is_empty() {
        return Err(Unusable::Not(format!(
            "{policy} also has CPUs {foreign}, which are not this VM's, and the CPUs of a policy share the governor"
        )));
    }
    let available = read(files, &path(policy, "scaling_available_governors")).map_err(Unusable::Unread)?;
    if !available.split_whitespace().any(|name| name == want) {
        return Err(Unusable::Not(format!("{policy} has only {available}")));
    }
    read(files, &path(policy, "scaling_governor")).map_err(Unusable::Unread)
}
