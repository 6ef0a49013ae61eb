//! What one reading finds: the daemon's new look at the kernel, beside what the daemon shows.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use stelia_api::ReasonCode;
use stelia_kernel::locality::nodes;
use stelia_model::{Instance, Node};

use super::{BY_A_PASS, Finding, Kind, NOT_REPORTED};
use crate::shared::daemon::{Description, Pod, Pods, lines_by_pod, writes_partition};

/// The findings, with the names of their VMs. A VM that is not an instance any more has none.
pub(super) fn of(described: &Description, preview: &Map<String, Value>) -> Vec<Finding> {
    let mut findings = degraded(described, preview);
    // Those of the node that its VMs have as reasons are there already.
    let known: Vec<Kind> = findings.iter().map(|finding| finding.kind.clone()).collect();
    let of_node = of_node(&described.node).into_iter();
    findings.extend(of_node.filter(|one| !known.contains(&one.kind)));
    let steps = steps(preview, &mut findings);
    findings.extend(steps);
    findings.extend(remote_memory(described));
    let pods = Pods::of(described);
    findings.retain(|one| one.pod.pod_uid == "-" || pods.has(&one.pod.pod_uid));
    for finding in &mut findings {
        finding.pod = pods.get(&finding.pod.pod_uid);
    }
    findings
}

/// The reasons of degradation. One that is of the whole node is a finding once, with the number of VMs that have it.
fn degraded(described: &Description, preview: &Map<String, Value>) -> Vec<Finding> {
    let of_vms: Vec<&str> = lines_by_pod(preview, "degraded")
        .filter(|(pod, _)| *pod != "-")
        .map(|(_, text)| text)
        .collect();
    let mut findings: Vec<Finding> = Vec::new();
    for (pod, kind, text) in reasons(preview) {
        let instance = described.node.instances.get(pod);
        if instance.is_some_and(|one| is_expected(one, kind)) {
            continue;
        }
        let mut finding = Finding::degraded(Pod::unnamed(pod), kind, text.to_owned());
        if pod == "-" {
            finding.vms = of_vms.iter().filter(|one| **one == text).count();
        }
        let is_shown = |one: &Instance| one.degraded.iter().any(|reason| reason.code.name() == kind);
        if instance.is_some_and(|one| !is_shown(one)) {
            finding.seen = false;
            finding.cure = format!("{NOT_REPORTED}; if it stays: {}", finding.cure);
        }
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

/// Whether a reason belongs to a resize under way: the threads of unplugged vCPUs end one by one until the runner attaches those that remain.
fn is_expected(instance: &Instance, kind: &str) -> bool {
    instance.pending_resize.is_some() && kind == ReasonCode::ThreadEnded.name()
}

/// The rows of `reasons`: the pod, the kind, the text.
fn reasons(preview: &Map<String, Value>) -> impl Iterator<Item = (&str, &str, &str)> {
    let rows = preview.get("reasons").and_then(Value::as_array);
    rows.into_iter().flatten().filter_map(|row| {
        let field = |at: usize| row.get(at)?.as_str();
        Some((field(0)?, field(1)?, field(2)?))
    })
}

/// The steps that a pass would take. One that repairs a partition which is a finding already is the cure of that finding.
fn steps(preview: &Map<String, Value>, findings: &mut [Finding]) -> Vec<Finding> {
    let differs = Kind::Degraded(ReasonCode::PartitionChanged.name().to_owned());
    let failed = reasons(preview).filter(|(_, kind, _)| *kind == ReasonCode::StepFailed.name());
    let failed: BTreeSet<&str> = failed.map(|(pod, ..)| pod).collect();
    let mut others = Vec::new();
    for (uid, step) in lines_by_pod(preview, "plan") {
        let mut same = findings
            .iter_mut()
            .filter(|one| one.kind == differs && one.pod.pod_uid == uid);
        match same.next().filter(|_| writes_partition(step)) {
            Some(finding) => {
                let by_a_pass = if finding.seen { BY_A_PASS } else { NOT_REPORTED };
                finding.cure = format!("{by_a_pass}; if it is changed again: {}", finding.cure);
            }
            None => others.push(Finding::step(uid, step, failed.contains(uid))),
        }
    }
    others
}

/// Findings about remote memory, except where the VM has had CPUs of other NUMA nodes since that was read. A remote device is not a
/// finding: kubelet chose it at admission, and a restart of the VM may not change it.
pub(super) fn remote_memory(described: &Description) -> Vec<Finding> {
    let node = &described.node;
    let all = described.locality.instances.iter();
    let found = all.filter_map(|(uid, locality)| {
        let instance = node.instances.get(uid.as_str())?;
        if locality.nodes != nodes(&node.topology, &instance.exclusive) {
            return None;
        }
        let (problem, cure) = (locality.memory_problem()?, locality.memory_cure());
        let away = Finding::new(Pod::unnamed(uid), Kind::MemoryAway, problem, cure);
        Some(away.in_section("a-vm-is-slow-although-it-is-isolated"))
    });
    found.collect()
}

/// What is wrong with the node, whether it has a VM or not.
fn of_node(node: &Node) -> Vec<Finding> {
    let of_kind = |kind: ReasonCode, problem: String| Finding::degraded(Pod::unnamed("-"), kind.name(), problem);
    let other = |problem: &str, cure: &str, section: &str| {
        Finding::new(Pod::unnamed("-"), Kind::Node, problem.to_owned(), cure).in_section(section)
    };
    let mut found = Vec::new();
    if let Some(problem) = &node.kubelet_problem {
        let problem = format!("kubelet's state cannot be used: {problem}");
        found.push(of_kind(ReasonCode::KubeletUnusable, problem));
    }
    if let Some(problem) = &node.systemd_problem {
        let cure = "systemctl list-jobs; cat /proc/1/stack";
        found.push(other(problem, cure, "the-daemon-does-not-run"));
    }
    // Each VM has this reason too.
    let unwatched = node.watch_problem.iter().filter(|_| node.instances.is_empty());
    found.extend(unwatched.map(|problem| of_kind(ReasonCode::NotWatched, problem.clone())));
    let degraded = "isolated-but-degraded-is-not-empty";
    if let Some(problem) = &node.kvm_problem {
        let cure =
            "allow AF_NETLINK in drop-ins of steliad.service (RestrictAddressFamilies=); steliad tries again every 5 s";
        found.push(other(problem, cure, degraded));
    }
    for (scope, reason) in &node.unreadable {
        let cure = "restart its container; upgrade steliad if a newer one made it";
        found.push(other(&format!("{scope} is not touched: {reason}"), cure, degraded));
    }
    if let Some(problem) = node.ledger.problem.as_ref().filter(|_| node.ledger.enabled) {
        found.push(Finding::of_ledger(
            Kind::Node,
            format!("the ledger is not kept: {problem}"),
        ));
    }
    found
}
