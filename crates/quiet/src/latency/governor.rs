//! cpufreq's governor. The CPUs of a policy share it (Documentation/admin-guide/pm/cpufreq.rst), so it is set only if all of
//! them belong to the same VM.

use std::collections::BTreeMap;

use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;

use super::{CPUS, Change, Decision, Write, is_gone, read};
use crate::failure::{QuietFailure, problem};
use crate::files::Files;
use crate::order::{Order, OrderedVm};

/// The file of a policy that has the governor in use.
const GOVERNOR: &str = "scaling_governor";

fn path(policy: &str, file: &str) -> String {
    format!("{CPUS}/cpufreq/{policy}/{file}")
}

/// What to do with a policy's governor. Governors have no rank as latencies do: the order's is set.
fn decide(record: Option<&Change>, now: &str, want: &str) -> Decision {
    match record {
        Some(change) if now == want && now == change.ours => Decision::keep(Some(change)),
        _ if now == want => Decision::keep(None),
        Some(change) if now == change.ours && want == change.base => Decision::undo(change, now),
        Some(change) if now == change.ours => Decision::change(&change.base, want),
        _ => Decision::change(now, want),
    }
}

/// The writes for all policies; `record` is changed to what it is after them.
pub(super) fn plan(
    files: &dyn Files,
    order: &Order,
    record: &mut BTreeMap<String, Change>,
    report: &mut Report,
) -> Vec<Write> {
    let (mut writes, mut wanted, mut unread_cpus) = (Vec::new(), Vec::new(), CpuSet::new());
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
        // A policy that cannot be read may be wanted, so it is not restored.
        wanted.extend(found.unread);
        unread_cpus.union_with(&found.unread_cpus);
        for policy in found.policies {
            match governor_to_replace(files, vm, &policy, want) {
                Ok(now) => {
                    let decision = decide(record.get(&policy), &now, want);
                    let path = path(&policy, GOVERNOR);
                    wanted.push(policy.clone());
                    decision.apply(policy, path, pod, record, &mut writes);
                }
                Err(Unusable::NotAllowed(why)) => problem(report, pod, format!("governor {want:?}: {why}")),
                Err(Unusable::Unread(failure)) => {
                    problem(report, pod, format!("governor {want:?}: {failure}"));
                    wanted.push(policy);
                }
            }
        }
    }
    let unwanted: Vec<String> = record
        .keys()
        .filter(|policy| !wanted.contains(policy))
        .cloned()
        .collect();
    for policy in unwanted {
        // A CPU whose policy could not be read may belong to this one.
        let may_be_wanted = !unread_cpus.is_empty()
            && match members(files, &policy) {
                Ok(members) => !members.is_disjoint(&unread_cpus),
                Err(failure) => !is_gone(&failure),
            };
        let path = path(&policy, GOVERNOR);
        // It cannot be read while all its CPUs are offline, and has the same governor when one is back (`last_governor` in
        // drivers/cpufreq/cpufreq.c). A policy ends with its last CPU, and a new one begins with the default.
        let decision = if may_be_wanted {
            Decision::keep(record.get(&policy))
        } else {
            Decision::unwanted(record.get(&policy), read(files, &path))
        };
        decision.apply(policy, path, "", record, &mut writes);
    }
    writes
}

/// The result of reading the policies of a VM's CPUs.
#[derive(Default)]
struct Policies {
    /// Each once.
    policies: Vec<String>,
    /// Policies whose CPUs cannot be read.
    unread: Vec<String>,
    /// CPUs whose policy cannot be read.
    unread_cpus: CpuSet,
    failures: Vec<QuietFailure>,
}

/// The policies of a VM's CPUs. An error of one CPU does not stop the others.
fn policies(files: &dyn Files, vm: &OrderedVm) -> Policies {
    let (mut found, mut of_read_policies) = (Policies::default(), CpuSet::new());
    for cpu in vm.cpus.iter() {
        if of_read_policies.contains(cpu) {
            continue;
        }
        let link = format!("{CPUS}/cpu{cpu}/cpufreq");
        let policy = match files.link(&link).map_err(QuietFailure::of("read", &link)) {
            Ok(policy) => policy,
            Err(failure) => {
                found.unread_cpus.insert(cpu);
                found.failures.push(failure);
                continue;
            }
        };
        if found.policies.contains(&policy) || found.unread.contains(&policy) {
            continue;
        }
        match members(files, &policy) {
            Ok(members) => {
                of_read_policies.union_with(&members);
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

/// The online CPUs of a policy, which the kernel separates by spaces.
fn members(files: &dyn Files, policy: &str) -> Result<CpuSet, QuietFailure> {
    let text = read(files, &path(policy, "affected_cpus"))?;
    Ok(text.split_whitespace().filter_map(|cpu| cpu.parse().ok()).collect())
}

/// Why a policy's governor is not set.
enum Unusable {
    /// Other CPUs share it, or the kernel has no such governor.
    NotAllowed(String),
    /// The policy cannot be read.
    Unread(QuietFailure),
}

/// The policy's present governor, if it may be replaced for this VM; else why not.
fn governor_to_replace(files: &dyn Files, vm: &OrderedVm, policy: &str, want: &str) -> Result<String, Unusable> {
    let foreign = members(files, policy).map_err(Unusable::Unread)?.difference(&vm.cpus);
    if !foreign.is_empty() {
        return Err(Unusable::NotAllowed(format!(
            "{policy} also has CPUs {foreign}, which are not this VM's, and the CPUs of a policy share the governor"
        )));
    }
    let available = read(files, &path(policy, "scaling_available_governors")).map_err(Unusable::Unread)?;
    if !available.split_whitespace().any(|name| name == want) {
        return Err(Unusable::NotAllowed(format!("{policy} has only {available}")));
    }
    read(files, &path(policy, GOVERNOR)).map_err(Unusable::Unread)
}
