//! `show`: one instance, its promise beside what the kernel says of its threads.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use stelia_settings::Isolation;

use crate::shared::daemon::{Client, Failure, Pod, no_instance};
use crate::shared::kernel::Roots;
use crate::shared::kernel::locality::VmLocality;
use crate::shared::kernel::threads::{self, Process};
use crate::shared::output::{Column, Render, TextStyle, column, members, printable, snake_case, table, text_of};

/// The properties' names in the D-Bus contract, in the order in which they are shown.
const ORDER: [&str; 19] = [
    "PodNamespace",
    "PodName",
    "PodUID",
    "Container",
    "AdoptedBy",
    "State",
    "Isolation",
    "Qos",
    "Degraded",
    "ExclusiveCPUs",
    "FloatCPUs",
    "MemoryNodes",
    "Partition",
    "Placement",
    "Unit",
    "ControlGroup",
    "OriginControlGroup",
    "RegisteredTimestamp",
    "IsolatedTimestamp",
];

pub(crate) const COLUMNS: [Column<threads::Thread>; 5] = [
    column("TID", |thread| thread.tid.to_string()),
    column("THREAD_NAME", |thread: &threads::Thread| thread.name.clone()).yields(1),
    column("CGROUP", |thread: &threads::Thread| thread.cgroup.clone()).yields(2),
    column("ALLOWED_CPUS", |thread: &threads::Thread| thread.allowed_cpus.clone()).yields(1),
    column("CPU TIME", |thread: &threads::Thread| {
        let hundredths = thread.cpu_time_us / 10_000;
        format!("{}.{:02}s", hundredths / 100, hundredths % 100)
    })
    .right(),
];

#[derive(Debug)]
pub(crate) struct InstanceDetails {
    properties: Map<String, Value>,
    /// `None` where the caller may not call `Describe`, as a pod may not.
    vm_locality: Option<VmLocality>,
    processes: Vec<Process>,
}

/// The instance that is called `vm`; with `numa_maps` also the NUMA nodes of the pages that its processes have mapped.
///
/// # Errors
/// There is no such instance, or its processes or maps may not be read.
pub(crate) async fn gather(
    client: &Client,
    roots: &Roots,
    vm: &str,
    numa_maps: bool,
) -> Result<InstanceDetails, Failure> {
    let found = client.find(vm).await?;
    let properties = found.properties.ok_or_else(|| no_instance(vm))?;
    let processes = threads::processes(
        roots,
        text_of(&properties, "ControlGroup"),
        text_of(&properties, "OriginControlGroup"),
        Isolation::parse(text_of(&properties, "Isolation")).unwrap_or_default(),
    )?;
    let description = client.describe().await.ok();
    let mut vm_locality =
        description.and_then(|node| VmLocality::of(node.locality, &found.pod.pod_uid, roots, &processes));
    if numa_maps && let Some(vm_locality) = &mut vm_locality {
        vm_locality.read_maps(roots, &processes)?;
    }
    Ok(InstanceDetails {
        properties,
        vm_locality,
        processes,
    })
}

/// One object: the properties, with `locality` and `processes` beside them.
impl Serialize for InstanceDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = snake_case(&self.properties);
        object.insert(
            "locality".to_owned(),
            self.vm_locality.as_ref().map(VmLocality::json).into(),
        );
        let processes = serde_json::to_value(&self.processes).map_err(serde::ser::Error::custom)?;
        object.insert("processes".to_owned(), processes);
        object.serialize(serializer)
    }
}

impl Render for InstanceDetails {
    fn names(&self) -> Vec<String> {
        let pod = Pod::of_properties(text_of(&self.properties, "PodUID"), &self.properties);
        vec![pod.to_string()]
    }

    fn text(&self, style: TextStyle) -> String {
        let vm_locality = self
            .vm_locality
            .as_ref()
            .map(|vm_locality| vm_locality.text(style))
            .unwrap_or_default();
        let mut text = members(&self.properties, &ORDER, style) + &vm_locality;
        for process in &self.processes {
            if style.legend {
                let inner = process
                    .container_pid
                    .map(|pid| format!(", {pid} in the container"))
                    .unwrap_or_default();
                text += &format!("\n{} (pid {}{inner})\n", printable(&process.name), process.pid);
            }
            text += &table(&COLUMNS, &process.threads, style);
        }
        text
    }
}
