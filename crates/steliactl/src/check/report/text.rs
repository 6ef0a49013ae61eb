//! The report as text.

use std::fmt::Write as _;

use serde_json::Value;
use stelia_kernel::locality::size;

use super::host::Host;
use super::watch::Thread;
use super::{NumaNode, OtherPod, Report, VmReport};
use crate::shared::output::{Column, Render, TextStyle, column, human, printable, properties, table, time};

const NUMA_NODES: [Column<NumaNode>; 7] = [
    column("NODE", |node| node.node.to_string()),
    column("SOCKET", |node| node.sockets.to_string()),
    column("EXCLUSIVE", |node| node.cpus.exclusive.to_string()),
    column("OTHER PODS", |node| node.cpus.pods.to_string()),
    column("SHARED", |node| node.cpus.shared.to_string()),
    column("RESERVED", |node| node.cpus.reserved.to_string()),
    column("UNASSIGNED", |node| node.cpus.unknown.to_string()),
];

pub(super) const THREADS: [Column<Thread>; 8] = [
    column("ROLE", |thread| match thread.index {
        Some(index) => format!("{} {index}", thread.role),
        None => thread.role.to_owned(),
    }),
    column("PID", |thread| thread.pid.to_string()),
    column("TID", |thread| thread.tid.to_string()),
    column("THREAD_NAME", |thread| thread.name.clone()),
    column("CGROUP", |thread| thread.cgroup.clone()),
    column("ALLOWED_CPUS", |thread| thread.allowed_cpus.clone()),
    column("RAN_ON", |thread| thread.ran_on.to_string()),
    column("CPU%", |thread: &Thread| {
        thread
            .cpu_share
            .map(|share| format!("{:.0}", share * 100.0))
            .unwrap_or_default()
    })
    .right(),
];

const OTHER_PODS: [Column<OtherPod>; 3] = [
    column("POD UID", |pod| pod.pod_uid.clone()),
    column("CONTAINER", |pod| pod.container.clone()),
    column("CPUS", |pod| pod.cpus.to_string()),
];

/// Everything, section by section.
pub(super) fn report(report: &Report, style: TextStyle) -> String {
    let mut text = host(&report.host, report.time_us, style);
    let mut section = |heading: &str, body: String| {
        let _ = write!(text, "\n== {} ==\n{body}", printable(heading));
    };
    if let Some(status) = &report.status {
        section("Node", status.text(style));
        section("CPUs by NUMA node", table(&NUMA_NODES, &report.numa_nodes, style));
    }
    // What is wrong comes before what is long.
    if let Some(verified) = &report.verify {
        section("Verified", verified.text(style));
    }
    if let Some(doctor) = &report.doctor {
        section("Fitness of the node", doctor.text(style));
    }
    if let Some(quiet) = &report.quiet {
        section("Interrupts and kernel threads", quiet.text(style));
    }
    if report.kubelet_config.is_object() {
        section("kubelet's configuration", kubelet(&report.kubelet_config, style));
    }
    if !report.other_pods.is_empty() {
        section(
            "Exclusive CPUs of pods that are not VMs",
            table(&OTHER_PODS, &report.other_pods, style),
        );
    }
    let mut vms: Vec<&VmReport> = report.vms.iter().collect();
    vms.sort_by_cached_key(|vm| vm.vm().to_string());
    for vm in vms {
        section(&format!("VM {}", vm.vm()), of_vm(vm, style));
    }
    if let Some(ledger) = &report.ledger {
        section("Ledger", ledger.text(style));
    }
    for (heading, text) in [
        ("Settings of steliad", &report.configuration),
        ("Journal of steliad", &report.journal),
    ] {
        if !text.is_empty() {
            section(heading, text.lines().map(|line| printable(line) + "\n").collect());
        }
    }
    if !report.missing.is_empty() {
        let missing = report.missing.iter().map(|part| printable(part) + "\n");
        section("Not in this report", missing.collect());
    }
    text
}

fn host(host: &Host, time_us: u64, style: TextStyle) -> String {
    let systemd = host.systemd.map(|version| version.to_string());
    properties(
        [
            ("Host", host.hostname.clone()),
            ("Time", time(time_us)),
            ("System", host.system.clone()),
            ("Kernel", host.kernel.clone()),
            ("systemd", systemd.unwrap_or_default()),
            ("Processor", host.processor.clone()),
            ("Memory", host.memory_bytes.map(size).unwrap_or_default()),
            ("steliactl", host.steliactl.clone()),
        ],
        style,
    )
}

/// The settings under kubelet's own names, one a line; those that say nothing are left out.
fn kubelet(config: &Value, style: TextStyle) -> String {
    let members = config.as_object().into_iter().flatten();
    let said = members.filter(|(_, value)| value.as_object().is_none_or(|members| !members.is_empty()));
    properties(
        said.map(|(name, value)| match value.as_object() {
            Some(members) => {
                let members = members.iter().map(|(name, value)| format!("{name}={}", human(value)));
                (name, members.collect::<Vec<_>>().join(", "))
            }
            None => (name, human(value)),
        }),
        style,
    )
}

fn of_vm(vm: &VmReport, style: TextStyle) -> String {
    let instance = &vm.instance;
    let mut rows = vec![
        ("Pod UID", vm.pod_uid.clone()),
        ("Container", instance.container.clone()),
        ("State", instance.state.to_string()),
    ];
    if let Some(why) = &instance.not_isolated {
        rows.push(("Not isolated", why.text.clone()));
    }
    rows.extend(instance.degraded.iter().map(|reason| ("Degraded", reason.to_string())));
    if !instance.class().is_empty() {
        rows.push(("Class", instance.class().to_owned()));
    }
    rows.extend([
        ("Exclusive CPUs", instance.exclusive.to_string()),
        ("Float CPUs", instance.float.to_string()),
        ("Memory nodes", instance.mems.to_string()),
        ("Partition", instance.partition.clone()),
        ("Placement", instance.placement.to_string()),
        ("Cgroup", instance.scope.to_string()),
        ("Container's cgroup", instance.origin.to_string()),
        ("Registered", time(instance.registered_us)),
        ("Isolated", time(instance.isolated_us)),
    ]);
    let threads = if vm.threads.is_empty() {
        "No threads were seen.\n".to_owned()
    } else {
        table(&THREADS, &vm.threads, style)
    };
    let locality = vm.locality.as_ref().map(|seen| seen.text(style)).unwrap_or_default();
    format!("{}\n{threads}{locality}", properties(rows, style))
}
