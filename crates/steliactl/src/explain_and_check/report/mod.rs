//! `report`: the whole node in one text, to be pasted into a ticket.
//!
//! | module | what it is |
//! |---|---|
//! | `host` | the host |
//! | `watch` | the VMs' threads, watched for a while |
//! | `text` | the report as text |

mod host;
#[cfg(test)]
mod tests;
mod text;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_model::Instance;

use crate::explain_and_check::verify::{self, Verified};
use crate::shared::daemon::{Client, Description, Failure, OnlineCpus, Pod};
use crate::shared::kernel::Roots;
use crate::shared::kernel::locality::VmLocality;
use crate::shared::kernel::threads::{self, Process};
use crate::shared::output::{self, Render, TextStyle};
use crate::view::status::Status;
use host::Host;
use watch::{Thread, watch, watched};

/// Nothing in it is secret: of the guests' processes only the names.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    time_us: u64,
    host: Host,
    /// As `status` answers.
    status: Status,
    /// As the daemon describes it, or `problem`.
    kubelet_config: Value,
    numa_nodes: Vec<NumaNode>,
    vms: Vec<VmReport>,
    other_pods: Vec<OtherPod>,
    /// As `verify` answers; `None` where the daemon refused to say.
    verify: Option<Verified>,
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

/// Reads everything, and watches the threads for this long. A part that may not be read is missing, with the reason.
///
/// # Errors
/// The daemon does not describe the node.
pub(crate) async fn gather(client: &Client, roots: &Roots, root: &Path, time: Duration) -> Result<Report, Failure> {
    let description = client.describe().await?;
    let mut missing = Vec::new();
    let mut processes = BTreeMap::new();
    for (uid, instance) in &description.node.instances {
        match threads::processes(
            roots,
            instance.scope.as_str(),
            instance.origin.as_str(),
            instance.isolation.known().unwrap_or_default(),
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
            locality: VmLocality::of(description.locality.clone(), uid.as_str(), roots, processes),
            instance: instance.clone(),
        }
    });
    let vms = vms.collect();
    let verify = verify::gather(client, None, None).await;
    missing.extend(
        verify
            .as_ref()
            .err()
            .map(|failure| format!("what verify finds: {failure}")),
    );
    Ok(Report {
        time_us: output::now(),
        host: Host::read(root),
        status: Status::of(&description),
        numa_nodes: numa_nodes(&description),
        other_pods: other_pods(&description),
        kubelet_config: description.kubelet_config,
        vms,
        verify: verify.ok(),
        missing,
    })
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
