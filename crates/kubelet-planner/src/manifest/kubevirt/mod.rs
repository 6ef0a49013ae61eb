//! The pod that KubeVirt's virt-controller makes of a VirtualMachineInstance, as far as kubelet's managers and the scheduler depend on it.
//!
//! The rules are those of KubeVirt 1.8.

mod memory;
mod node;
#[cfg(test)]
mod tests;
mod vm;
mod webhook;

use serde_json::{Value, json};

use super::error::ManifestError;
use super::fields::Field;
pub use node::NodeRequirements;
use vm::KubevirtVm;

/// The fields of the VM's `spec` that its pod has too.
const SHARED_FIELDS: [&str; 3] = ["nodeSelector", "affinity", "tolerations"];

/// What is made of a VM.
pub(super) struct VmPod {
    /// The pod's `spec`, without what KubeVirt requires of its node.
    pub(super) spec: Value,
    pub(super) requirements: NodeRequirements,
    /// A sentence each.
    pub(super) assumed: Vec<String>,
}

/// A VM whose size is in another object cannot be planned for; `spec` is that of the VirtualMachine.
pub(super) fn refuse_instance_type(spec: &Field<'_>) -> Result<(), ManifestError> {
    match spec.get("instancetype")? {
        None => Ok(()),
        Some(found) => Err(found.wrong(
            "the VM's size is in another object, the instance type: give the VirtualMachineInstance that KubeVirt made of it",
        )),
    }
}

/// The pod of a VirtualMachineInstance with this `spec`.
pub(super) fn pod(spec: &Field<'_>, metadata: &Value) -> Result<VmPod, ManifestError> {
    let domain = spec.needed("domain")?;
    let vm = KubevirtVm::read(spec, &domain, metadata)?;
    webhook::check(spec, &domain, &vm)?;
    let (requests, limits) = vm.resources();
    let mut made = json!({
        "containers": [{"name": "compute", "resources": {"requests": requests, "limits": limits}}],
    });
    for name in SHARED_FIELDS {
        if let Some(field) = spec.get(name)? {
            made[name] = field.value().clone();
        }
    }
    let selector = spec.get("nodeSelector")?;
    let is_selected = |label: &str| selector.as_ref().is_some_and(|field| !field.value()[label].is_null());
    if let Some(architecture) = &vm.architecture
        && !is_selected(node::ARCHITECTURE)
    {
        made["nodeSelector"][node::ARCHITECTURE] = architecture.to_lowercase().into();
    }
    let mut assumed = vec![format!(
        "the pod is the one that KubeVirt 1.8 would make by its defaults, with {} MiB of memory beside the guest's; containers other than \
         compute, devices of networks and KubeVirt's own settings are not considered",
        vm.overhead() >> 20
    )];
    if vm.dedicated && vm.is_overhead_unrequested() {
        assumed.push(
            "with overcommitGuestOverhead KubeVirt requests less memory than the limit: the pod is Burstable, and kubelet assigns no exclusive \
             CPUs to it in spite of dedicatedCpuPlacement"
                .to_owned(),
        );
    }
    let mut requirements = NodeRequirements::read(spec, &domain, &vm)?;
    if is_selected(node::SCHEDULABLE) {
        requirements.labels.remove(node::SCHEDULABLE);
    }
    Ok(VmPod {
        spec: made,
        requirements,
        assumed,
    })
}

/// A number; 0 where it is absent.
fn number(field: &Field<'_>, key: &str) -> Result<u64, ManifestError> {
    let Some(field) = field.get(key)? else { return Ok(0) };
    field.value().as_u64().ok_or_else(|| field.wrong("it must be a number"))
}

fn flag(field: &Field<'_>, keys: &[&str]) -> Result<Option<bool>, ManifestError> {
    let Some(field) = field.below(keys)? else {
        return Ok(None);
    };
    let value = field.value().as_bool();
    value.map(Some).ok_or_else(|| field.wrong("it must be true or false"))
}

fn text<'a>(field: &Field<'a>, keys: &[&str]) -> Result<Option<&'a str>, ManifestError> {
    let found = field.below(keys)?;
    let text = found.as_ref().map(Field::text).transpose()?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// The items of a list; none where it is absent.
fn items<'a>(field: &Field<'a>, keys: &[&str]) -> Result<Vec<Field<'a>>, ManifestError> {
    match field.below(keys)? {
        Some(list) => Ok(list.items()?.collect()),
        None => Ok(Vec::new()),
    }
}
