//! Objects that have the template of a pod: workloads, and VMs of KubeVirt.

use serde_json::{Value, json};

use super::error::ManifestError;
use super::fields::Field;
use super::kubevirt::{self, NodeRequirements};

/// Where an object has what its pods are made of.
struct Template {
    /// The keys from the object's root.
    keys: &'static [&'static str],
    /// Whether it is a VirtualMachineInstance, of which KubeVirt makes a pod.
    is_vm: bool,
}

impl Template {
    /// The template in objects of this version and kind; `None` where they have none.
    fn of(version: &str, kind: &str) -> Option<Self> {
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let (keys, is_vm): (&[&str], bool) = match (group, kind) {
            ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
            | ("", "ReplicationController")
            | ("batch", "Job") => (&["spec", "template"], false),
            ("batch", "CronJob") => (&["spec", "jobTemplate", "spec", "template"], false),
            ("", "PodTemplate") => (&["template"], false),
            ("kubevirt.io", "VirtualMachineInstance") => (&[], true),
            ("kubevirt.io", "VirtualMachine" | "VirtualMachineInstanceReplicaSet") => (&["spec", "template"], true),
            ("pool.kubevirt.io", "VirtualMachinePool") => {
                (&["spec", "virtualMachineTemplate", "spec", "template"], true)
            }
            _ => return None,
        };
        Some(Self { keys, is_vm })
    }
}

/// The document of a Pod, made of an object's template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Made {
    /// A Pod of `v1`, with a name.
    pub(super) document: Value,
    /// What has to stand before paths in the document so that they are paths in the object; empty for those of a VM.
    pub(super) path: String,
    /// What KubeVirt requires of the pod's node.
    pub(super) requirements: NodeRequirements,
    /// What was assumed to make it.
    pub(super) assumed: Vec<String>,
}

/// Whether an object of this version and kind has the template of a pod.
pub(super) fn is_one(version: &str, kind: &str) -> bool {
    Template::of(version, kind).is_some()
}

/// The pod of an object for which [`is_one`] holds; `name` is the object's.
pub(super) fn pod(object: &Value, version: &str, kind: &str, name: &str) -> Result<Made, ManifestError> {
    let mut field = Field::root(object);
    let template = Template::of(version, kind);
    let Some(Template { keys, is_vm }) = template else {
        return Err(field.wrong("it has no template of a pod"));
    };
    let mut assumed: Vec<String> = replicas(&field)?.into_iter().collect();
    for key in keys {
        // An instance type and a preference stand beside the template.
        if is_vm && *key == "template" {
            kubevirt::refuse_instance_type(&field)?;
            if field.get("preference")?.is_some() {
                assumed.push("the VM's preference is another object and is not considered".to_owned());
            }
        }
        field = field.needed(key)?;
    }
    let spec = field.needed("spec")?;
    let mut metadata = field
        .get("metadata")?
        .map_or_else(|| json!({}), |metadata| metadata.value().clone());
    if !metadata.is_object() {
        return Err(field.needed("metadata")?.wrong("it must be a map"));
    }
    metadata["name"] = name.into();
    let (spec, requirements) = if is_vm {
        let made = kubevirt::pod(&spec, &metadata)?;
        assumed.extend(made.assumed);
        (made.spec, made.requirements)
    } else {
        (spec.value().clone(), NodeRequirements::default())
    };
    Ok(Made {
        document: json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}),
        path: if is_vm { String::new() } else { field.path().to_owned() },
        requirements,
        assumed,
    })
}

/// That the object makes more pods than one, or none.
fn replicas(object: &Field<'_>) -> Result<Option<String>, ManifestError> {
    let Some(field) = object.below(&["spec", "replicas"])? else {
        return Ok(None);
    };
    match field.value().as_u64() {
        Some(1) => Ok(None),
        Some(0) => Ok(Some(
            "the object has 0 replicas: the answer is for the pod that the first would be".to_owned(),
        )),
        Some(count) => Ok(Some(format!("the answer is for one of {count} replicas"))),
        None if field.value().as_i64().is_some() => Err(field.wrong("it must not be negative")),
        None => Err(field.wrong("it must be a number")),
    }
}
