//! The labels and devices that KubeVirt requires of a VM's node.

use std::collections::BTreeMap;

use super::super::error::ManifestError;
use super::super::fields::Field;
use super::vm::KubevirtVm;
use super::{flag, items, text};

/// On every node where virt-handler runs.
pub(super) const SCHEDULABLE: &str = "kubevirt.io/schedulable";
pub(super) const ARCHITECTURE: &str = "kubernetes.io/arch";
/// kubelet's CPU manager assigns CPUs there.
const CPU_MANAGER: &str = "kubevirt.io/cpumanager";
const CPU_MODEL: &str = "cpu-model.node.kubevirt.io/";
const CPU_FEATURE: &str = "cpu-feature.node.kubevirt.io/";
const MACHINE_TYPE: &str = "machine-type.node.kubevirt.io/";
const REALTIME: &str = "kubevirt.io/realtime";
const SEV: &str = "kubevirt.io/sev";
const SEV_ES: &str = "kubevirt.io/sev-es";
const SEV_SNP: &str = "kubevirt.io/sev-snp";
const TDX: &str = "kubevirt.io/tdx";
/// The domain of the devices.
const DEVICES: &str = "devices.kubevirt.io/";

/// What KubeVirt requires of the node of a VM beside the fields that the VM shares with its pod; empty for other pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRequirements {
    /// Additions to the pod's `nodeSelector`, which go before the VM's.
    pub labels: BTreeMap<String, String>,
    /// Devices of KubeVirt's own device plugin, and how many of each.
    pub devices: BTreeMap<String, u64>,
}

impl NodeRequirements {
    /// The label that KubeVirt gives to each node where VMs can run.
    pub const NODE_LABEL: &'static str = SCHEDULABLE;

    /// Whether a resource is a device of KubeVirt's own device plugin.
    pub fn is_device(resource: &str) -> bool {
        resource.starts_with(DEVICES)
    }

    /// Whether nothing is required.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.devices.is_empty()
    }

    /// The labels as `key=value`, between commas.
    pub fn labels_in_words(&self) -> String {
        let labels: Vec<String> = self
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        labels.join(", ")
    }

    /// The names of the devices, between commas.
    pub fn devices_in_words(&self) -> String {
        let devices: Vec<&str> = self.devices.keys().map(String::as_str).collect();
        devices.join(", ")
    }

    pub(super) fn read(spec: &Field<'_>, domain: &Field<'_>, vm: &KubevirtVm) -> Result<Self, ManifestError> {
        Ok(Self {
            labels: labels(domain, vm)?,
            devices: devices(spec, domain)?,
        })
    }
}

fn labels(domain: &Field<'_>, vm: &KubevirtVm) -> Result<BTreeMap<String, String>, ManifestError> {
    let mut names = vec![SCHEDULABLE.to_owned()];
    let mut add = |is_required: bool, label: &str| {
        if is_required {
            names.push(label.to_owned());
        }
    };
    add(vm.dedicated, CPU_MANAGER);
    if let Some(model) = text(domain, &["cpu", "model"])? {
        let is_of_host = ["host-model", "host-passthrough"].contains(&model);
        add(!is_of_host, &format!("{CPU_MODEL}{model}"));
    }
    for feature in items(domain, &["cpu", "features"])? {
        let is_required = text(&feature, &["policy"])?.is_none_or(|policy| policy == "require");
        add(
            is_required,
            &format!("{CPU_FEATURE}{}", feature.needed("name")?.text()?),
        );
    }
    if let Some(machine) = text(domain, &["machine", "type"])? {
        add(true, &format!("{MACHINE_TYPE}{machine}"));
    }
    add(domain.below(&["cpu", "realtime"])?.is_some(), REALTIME);
    add(is_sev(domain)?, SEV);
    let encrypts_state = flag(domain, &["launchSecurity", "sev", "policy", "encryptedState"])?;
    add(encrypts_state == Some(true), SEV_ES);
    add(domain.below(&["launchSecurity", "snp"])?.is_some(), SEV_SNP);
    add(domain.below(&["launchSecurity", "tdx"])?.is_some(), TDX);
    Ok(names.into_iter().map(|name| (name, "true".to_owned())).collect())
}

/// The devices of a cluster whose nodes have hardware virtualization: `useEmulation` is off by default.
fn devices(spec: &Field<'_>, domain: &Field<'_>) -> Result<BTreeMap<String, u64>, ManifestError> {
    let interfaces = items(domain, &["devices", "interfaces"])?;
    let attaches_pod_network = flag(domain, &["devices", "autoattachPodInterface"])?.unwrap_or(true);
    // KubeVirt adds an interface, which is of virtio, to a VM that has neither interfaces nor networks.
    let is_added = attaches_pod_network && interfaces.is_empty() && items(spec, &["networks"])?.is_empty();
    let mut has_virtio = is_added;
    for interface in &interfaces {
        has_virtio |= text(interface, &["model"])?.is_none_or(|model| model == "virtio");
    }
    let has_vsock = flag(domain, &["devices", "autoattachVSOCK"])?.unwrap_or(false);
    let required = [
        ("kvm", true),
        ("tun", attaches_pod_network || !interfaces.is_empty()),
        ("vhost-net", has_virtio),
        ("vhost-vsock", has_vsock),
        ("sev", is_sev(domain)?),
    ];
    let required = required.into_iter().filter(|(_, is_required)| *is_required);
    Ok(required.map(|(name, _)| (format!("{DEVICES}{name}"), 1)).collect())
}

/// Whether the guest's memory is encrypted by SEV, which includes SEV-SNP.
pub(super) fn is_sev(domain: &Field<'_>) -> Result<bool, ManifestError> {
    let sev = domain.below(&["launchSecurity", "sev"])?;
    let snp = domain.below(&["launchSecurity", "snp"])?;
    Ok(sev.is_some() || snp.is_some())
}
