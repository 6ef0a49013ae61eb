//! `report`: the whole node in one text, to be pasted into a ticket. What the daemon does not say is missing, the rest is there.

mod host;
#[cfg(test)]
mod tests;
mod text;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_kubelet::config;
use stelia_kubelet::home::Search;
use stelia_model::Instance;

use crate::explain_and_check::doctor::{self, Examined};
use crate::check::ledger;
use crate::explain_and_check::quiet::{self, Quietness};
use crate::explain_and_check::verify::{self, Verified};
use crate::shared::daemon::{Client, Description, Failure, OnlineCpus, Pod, Selection};
use crate::shared::kernel::Roots;
use crate::shared::kernel::locality::VmLocality;
use crate::shared::kernel::threads::{self, Process};
use crate::shared::output::{self, Render, TextStyle};
use crate::view::status::Status;
use host::Host;
use watch::{Thread, watch, watched};

const PRINT_CONFIG: [&str; 2] = ["/usr/libexec/stelia/steliad", "--print-config"];
const PRINT_JOURNAL: [&str; 6] = [
    "journalctl",
    "--unit=steliad",
    "--unit=steliad-quiet",
    "--lines=50",
    "--no-pager",
    "--quiet",
];

/// Nothing in it is secret: of the guests' processes only the names.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    time_us: u64,
    host: Host,
    /// As `status` answers; `None` where the daemon does not.
    status: Option<Status>,
    /// As the daemon describes it, or `problem`; without the daemon as kubelet's files have it.
    kubelet_config: Value,
    numa_nodes: Vec<NumaNode>,
    vms: Vec<VmReport>,
    other_pods: Vec<OtherPod>,
    /// As `verify` answers; `None` where the daemon refused to say.
    verify: Option<Verified>,
    /// As `quiet` answers.
    quiet: Option<Quietness>,
    /// `None` where no ledger is kept, or it cannot be read.
    ledger: Option<ledger::Summary>,
    /// As `doctor` answers.
    doctor: Option<Examined>,
    /// The settings in force, as `steliad --print-config` prints them; empty where they cannot be read.
    configuration: String,
    /// The last lines of the journal of the daemon's units.
    journal: String,
    /// Parts that are missing, each with the reason.
    missing: Vec<String>,
}

/// The pools of one NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct NumaNode {
    node: u32,
    /// The sockets of its CPUs: one, on most machines.
    sockets: CpuSet,
    #[serde(flatten)]
    cpus: OnlineCpus,
}

#[derive(Debug, Serialize)]
struct VmReport {
    pod_uid: String,
    /// As the daemon describes it.
    #[serde(flatten)]
    instance: Arc<Instance>,
    threads: Vec<Thread>,
    #[serde(serialize_with = "as_show_has_it")]
    locality: Option<VmLocality>,
}

impl VmReport {
    fn vm(&self) -> Pod {
        Pod::new(&self.pod_uid, self.instance.pod_name.as_ref())
    }
}

/// Exclusive CPUs of a container that is not a VM's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct OtherPod {
    pod_uid: String,
    container: String,
    cpus: CpuSet,
}

fn as_show_has_it<S: Serializer>(locality: &Option<VmLocality>, serializer: S) -> Result<S::Ok, S::Error> {
    locality.as_ref().map(VmLocality::json).serialize(serializer)
}

/// Reads everything, and watches the threads for this long. A part that cannot be read is missing, with the reason.
pub(crate) async fn gather(client: Result<Client, Failure>, roots: &Roots, root: &Path, time: Duration) -> Report {
    let mut missing = Vec::new();
    let described = match client {
        Ok(client) => client.describe().await.map(|description| (client, description)),
        Err(failure) => Err(failure),
    };
    let (client, described) = match described {
        Ok((client, description)) => (Some(client), Some(description)),
        Err(failure) => {
            missing.push(format!("what the daemon knows: {failure}"));
            (None, None)
        }
    };
    let status = described.as_ref().map(Status::of);
    let kubelet_config = match &described {
        Some(description) => description.kubelet_config.clone(),
        None => kubelets_own(root).unwrap_or_else(|problem| {
            missing.push(format!("kubelet's configuration: {problem}"));
            Value::Null
        }),
    };
    let doctor = doctor::gather(root, described.clone(), None).await;
    let description = described.unwrap_or_default();
    let mut processes = BTreeMap::new();
    for (uid, instance) in &description.node.instances {
        match threads::processes(
            roots,
            instance.scope.as_str(),
            instance.origin.as_str(),
            instance.isolation,
        ) {
            Ok(found) => {
                processes.insert(uid.clone(), found);
            }
            Err(failure) => missing.push(format!("threads of {}: {failure}", Pod::of(uid, instance))),
        }
    }
    let tracks = watch(&roots.proc, processes.values().flatten(), time).await;
    if processes
        .values()
        .flatten()
        .any(|process| hides_files(&roots.proc, process))
    {
        missing.push("devices of VFIO: only root may see which a process has open".to_owned());
    }
    let instances = description.node.instances.iter();
    let vms = instances.map(|(uid, instance)| {
        let processes = processes.get(uid).map(Vec::as_slice).unwrap_or_default();
        VmReport {
            pod_uid: uid.to_string(),
            threads: watched(processes, &instance.vcpus, &tracks),
            locality: VmLocality::of(&description, uid.as_str(), roots, processes),
            instance: instance.clone(),
        }
    });
    let vms = vms.collect();
    let (mut verify, mut quiet) = (None, None);
    if let Some(client) = &client {
        match verify::gather(client, &Selection::default(), Default::default()).await {
            Ok(verified) => verify = Some(verified),
            Err(failure) => missing.push(format!("what verify finds: {failure}")),
        }
        match quiet::gather(client, roots, &Selection::default()).await {
            Ok(quietness) => quiet = Some(quietness),
            Err(failure) => missing.push(format!("what quiet finds: {failure}")),
        }
    }
    let ledger = ledger::summary(client.as_ref(), root).await;
    let ledger = ledger
        .map_err(|failure| missing.push(format!("the ledger: {failure}")))
        .ok();
    let mut of_program = |part: &str, command: &[&str]| match printed(root, command) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) => {
            missing.push(format!("{part}: {} prints nothing", command[0]));
            String::new()
        }
        Err(problem) => {
            missing.push(format!("{part}: {problem}"));
            String::new()
        }
    };
    let configuration = of_program("the settings in force", &PRINT_CONFIG);
    let journal = of_program("the journal", &PRINT_JOURNAL);
    Report {
        time_us: output::now(),
        host: Host::read(root),
        status,
        numa_nodes: numa_nodes(&description),
        other_pods: other_pods(&description),
        kubelet_config,
        vms,
        verify,
        quiet,
        ledger,
        doctor: Some(doctor),
        configuration,
        journal,
        missing,
    }
}

/// kubelet's configuration as its files and its command line have it.
fn kubelets_own(root: &Path) -> Result<Value, String> {
    let read = config::read(&root.join("proc"), root, Search::SocketsThenNames).map_err(|error| error.in_full())?;
    serde_json::to_value(read).map_err(|error| error.to_string())
}

/// What a command prints on this host; of a node in a folder nothing can.
fn printed(root: &Path, command: &[&str]) -> Result<String, String> {
    let (Some((program, arguments)), true) = (command.split_first(), root == Path::new("/")) else {
        return Err("not of this host".to_owned());
    };
    let answer = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let answer = answer.map_err(|cause| format!("run {program}: {cause}"))?;
    if answer.status.success() {
        Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&answer.stderr).trim()))
    }
}

/// Whether we may not see which files a process has open.
fn hides_files(proc: &Path, process: &Process) -> bool {
    let files = fs::read_dir(proc.join(format!("{}/fd", process.pid)));
    files.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

fn numa_nodes(description: &Description) -> Vec<NumaNode> {
    let mut nodes: BTreeMap<u32, NumaNode> = BTreeMap::new();
    for (number, cpu) in &description.node.topology.cpus {
        let node = nodes.entry(cpu.node).or_default();
        node.node = cpu.node;
        node.sockets.insert(cpu.package);
        node.cpus.add(description, *number);
    }
    nodes.into_values().collect()
}

fn other_pods(description: &Description) -> Vec<OtherPod> {
    let node = &description.node;
    let others = node
        .entries
        .iter()
        .filter(|(pod, _)| !node.instances.contains_key(*pod));
    let containers = others.flat_map(|(pod, own)| own.iter().map(move |(container, cpus)| (pod, container, cpus)));
    let other = containers.map(|(pod, container, cpus)| OtherPod {
        pod_uid: pod.to_string(),
        container: container.clone(),
        cpus: cpus.clone(),
    });
    other.collect()
}

impl Render for Report {
    /// Nothing is cut: it is for a ticket.
    fn text(&self, style: TextStyle) -> String {
        text::report(self, TextStyle { width: None, ..style })
    }
}
