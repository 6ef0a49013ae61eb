//! `show`: instances, the promise of each beside what the kernel says of its threads.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use stelia_settings::Isolation;

use crate::shared::daemon::{Client, Description, Failure, ListedInstance, Pod, Selection, no_instance, not_isolated};
use crate::shared::kernel::Roots;
use crate::shared::kernel::locality::VmLocality;
use crate::shared::kernel::threads::{self, Process};
use crate::shared::output::{Column, Render, TextStyle, column, members, now, printable, snake_case, table, text_of};

/// The properties' names in the D-Bus contract, in the order in which they are shown.
const ORDER: [&str; 22] = [
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
    "PendingResize",
    "VCPUs",
    "FloatCPUs",
    "MemoryLimit",
    "MemoryNodes",
    "Partition",
    "Placement",
    "Unit",
    "ControlGroup",
    "OriginControlGroup",
    "RegisteredTimestamp",
    "IsolatedTimestamp",
];

/// The line that has why the VM is not isolated, below its state. It is no property.
const NOT_ISOLATED: &str = "NotIsolated";

pub(crate) const COLUMNS: [Column<threads::Thread>; 5] = [
    column("TID", |thread| thread.tid.to_string()),
    column("THREAD_NAME", |thread: &threads::Thread| thread.name.clone()).yields(1),
    column("CGROUP", |thread: &threads::Thread| thread.cgroup.clone())
        .yields(2)
        .shortens(),
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
    /// Why it floats or is pinned, with how long it has waited; the text alone has it.
    why: Option<String>,
    processes: Vec<Process>,
}

/// The selected instances; as JSON one that is named is an object, and what a pattern selects is a list.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Shown {
    One(Box<InstanceDetails>),
    Several(Vec<InstanceDetails>),
}

/// The instances that are selected; with `numa_maps` also the NUMA nodes of the pages that their processes have mapped.
///
/// # Errors
/// There is no such instance, nothing is selected, or the processes or maps may not be read.
pub(crate) async fn gather(
    client: &Client,
    roots: &Roots,
    selection: &Selection,
    numa_maps: bool,
) -> Result<Shown, Failure> {
    if selection.is_all() {
        return Err(Failure::Usage(
            "which VM? Name it, or give a pattern, -n or --state; steliactl list has the names".to_owned(),
        ));
    }
    let description = client.describe().await.ok();
    let details = |found: ListedInstance| details(found, description.as_ref(), roots, numa_maps);
    if let Some(vm) = selection.name()
        && let Ok(found) = client.find(vm).await
    {
        return Ok(Shown::One(Box::new(details(found)?)));
    }
    let mut all = Vec::new();
    for found in selection.of_listed(client.instances().await?)? {
        match details(found) {
            Ok(one) => all.push(one),
            // It ended meanwhile.
            Err(Failure::NoSuchInstance(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(Shown::Several(all))
}

fn details(
    found: ListedInstance,
    description: Option<&Description>,
    roots: &Roots,
    numa_maps: bool,
) -> Result<InstanceDetails, Failure> {
    let properties = found.properties.ok_or_else(|| no_instance(&found.pod.pod_uid))?;
    let processes = threads::processes(
        roots,
        text_of(&properties, "ControlGroup"),
        text_of(&properties, "OriginControlGroup"),
        Isolation::parse(text_of(&properties, "Isolation")).unwrap_or_default(),
    )?;
    let mut vm_locality = description.and_then(|node| VmLocality::of(node, &found.pod.pod_uid, roots, &processes));
    if numa_maps && let Some(vm_locality) = &mut vm_locality {
        vm_locality.read_maps(roots, &processes)?;
    }
    let instances = description.map(|description| &description.node.instances);
    let instance = instances.and_then(|all| all.get(found.pod.pod_uid.as_str()));
    Ok(InstanceDetails {
        why: instance.and_then(|instance| Some(not_isolated(instance)?.at(now()))),
        properties,
        vm_locality,
        processes,
    })
}

impl Shown {
    fn all(&self) -> &[InstanceDetails] {
        match self {
            Self::One(one) => std::slice::from_ref(&**one),
            Self::Several(all) => all,
        }
    }
}

impl Render for Shown {
    fn names(&self) -> Vec<String> {
        self.all().iter().flat_map(Render::names).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let texts: Vec<String> = self.all().iter().map(|one| one.text(style)).collect();
        if texts.is_empty() {
            "No instances.\n".to_owned()
        } else {
            texts.join("\n")
        }
    }
}

/// Each vCPU with its CPU and its thread, in words. A CPU that is no CPU's number means that the thread is not pinned.
fn pinned(vcpus: &Value) -> Value {
    let one = |vcpu: &Value| {
        let number = |at: usize| vcpu.get(at).and_then(Value::as_u64);
        let (index, thread, cpu) = (number(0)?, number(1)?, number(2)?);
        Some(if cpu < u64::from(u32::MAX) {
            format!("{index} on CPU {cpu} (thread {thread})")
        } else {
            format!("{index} not pinned (thread {thread})")
        })
    };
    let words: Option<Vec<String>> = vcpus.as_array().map(|all| all.iter().filter_map(one).collect());
    words.map_or_else(|| vcpus.clone(), Value::from)
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

/// The property PendingResize in words; `None` while there is none.
fn pending_resize(property: &Value) -> Option<String> {
    let numbers: Vec<u64> = property.as_array()?.iter().filter_map(Value::as_u64).collect();
    match numbers[..] {
        [from, to, _] if from > 0 => Some(format!("{to} of {from} CPUs remain; vCPUs are being unplugged")),
        _ => None,
    }
}

/// The property MemoryLimit in words; `None` while there is none.
fn memory_limit(property: &Value) -> Option<String> {
    let bytes = property.as_u64().filter(|bytes| *bytes < u64::MAX)?;
    Some(format!("{} MiB", bytes >> 20))
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
        let mut properties = self.properties.clone();
        if let Some(vcpus) = properties.get_mut("VCPUs") {
            *vcpus = pinned(vcpus);
        }
        let limit = properties.remove("MemoryLimit").as_ref().and_then(memory_limit);
        properties.extend(limit.map(|limit| ("MemoryLimit".to_owned(), Value::from(limit))));
        let resize = properties.remove("PendingResize").as_ref().and_then(pending_resize);
        properties.extend(resize.map(|resize| ("PendingResize".to_owned(), Value::from(resize))));
        let why = self.why.as_ref();
        properties.extend(why.map(|why| (NOT_ISOLATED.to_owned(), Value::from(why.as_str()))));
        let order = ORDER.into_iter().flat_map(|name| match name {
            "State" => vec![name, NOT_ISOLATED],
            name => vec![name],
        });
        let order: Vec<&str> = order.collect();
        let mut text = members(&properties, &order, style) + &vm_locality;
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
