//! `show`: one instance, its promise beside what the kernel says of its threads.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::client::{Client, Failure};
use crate::locality::Seen;
use crate::threads::{self, Process, Roots};
use crate::view::{Column, Render, column, list, members, printable, text_of};

/// The properties' names in the D-Bus contract, in the order in which they are shown.
const ORDER: [&str; 15] = [
    "PodUID",
    "Container",
    "State",
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

const COLUMNS: [Column<threads::Thread>; 5] = [
    column("TID", |thread| thread.tid.to_string()),
    column("THREAD_NAME", |thread| thread.name.clone()),
    column("CGROUP", |thread| thread.cgroup.clone()),
    column("ALLOWED_CPUS", |thread| thread.allowed_cpus.clone()),
    column("CPU TIME", |thread: &threads::Thread| {
        let hundredths = thread.cpu_time_usec / 10_000;
        format!("{}.{:02}s", hundredths / 100, hundredths % 100)
    })
    .right(),
];

#[derive(Debug)]
pub(crate) struct Shown {
    properties: Map<String, Value>,
    /// `None` where the caller may not call `Describe`, as a pod may not.
    seen: Option<Seen>,
    processes: Vec<Process>,
}

/// The instance of the pod `uid`; with `numa_maps` also the NUMA nodes of the pages that its processes have mapped.
///
/// # Errors
/// There is no such instance, or its processes or maps may not be read.
pub(crate) async fn gather(client: &Client, roots: &Roots, uid: &str, numa_maps: bool) -> Result<Shown, Failure> {
    let row = client.find(uid).await?;
    let properties = client.properties(&row).await?;
    let processes = threads::processes(
        roots,
        text_of(&properties, "ControlGroup"),
        text_of(&properties, "OriginControlGroup"),
    )?;
    let description = client.describe().await.ok();
    let mut seen = description.and_then(|node| Seen::of(node.locality, &row.0, roots, &processes));
    if numa_maps && let Some(seen) = &mut seen {
        seen.read_maps(roots, &processes)?;
    }
    Ok(Shown {
        properties,
        seen,
        processes,
    })
}

/// One object: the properties under their D-Bus names, with `Locality` and `Processes` beside them.
impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = self.properties.clone();
        if let Some(seen) = &self.seen {
            object.insert("Locality".to_owned(), seen.json());
        }
        let processes = serde_json::to_value(&self.processes).map_err(serde::ser::Error::custom)?;
        object.insert("Processes".to_owned(), processes);
        object.serialize(serializer)
    }
}

impl Render for Shown {
    fn text(&self, legend: bool) -> String {
        let seen = self.seen.as_ref().map(|seen| seen.text(legend)).unwrap_or_default();
        let mut text = members(&self.properties, &ORDER) + &seen;
        for process in &self.processes {
            if legend {
                let inner = process
                    .container_pid
                    .map(|pid| format!(", {pid} in the container"))
                    .unwrap_or_default();
                text += &format!("\n{} (pid {}{inner})\n", printable(&process.name), process.pid);
            }
            text += &list(&COLUMNS, &process.threads, legend);
        }
        text
    }
}
