//! The memory that KubeVirt requests beside the guest's, by its own estimate.

use super::super::error::ManifestError;
use super::super::fields::Field;
use super::{flag, items, node, vm};

const MIB: u64 = 1 << 20;
/// What virt-launcher, its monitor, virtlogd, virtqemud, QEMU and an I/O thread take.
const PROCESSES: u64 = (100 + 25 + 25 + 40 + 30 + 8) * MIB;
const PER_VCPU: u64 = 8 * MIB;
const VIDEO: u64 = 32 * MIB;
/// One byte of page tables for this much requested memory.
const PAGE_TABLES: u64 = 512;
/// With devices that are passed through.
const VFIO: u64 = 1 << 30;
/// The firmware's flash memories of an arm64 machine.
const ARM64_FLASH: u64 = 128 * MIB;
const DOWNWARD_METRICS: u64 = MIB;
/// Once, where there is a probe that executes a command.
const PROBES: u64 = 100 * MIB;
const PER_PROBE: u64 = 10 * MIB;
const SEV: u64 = 256 * MIB;
const TPM: u64 = 53 * MIB;
/// For a VM with CPUs of its own, or one that asks for the class Guaranteed.
const GUARANTEED: u64 = 100 * MIB;

/// What each field of the VM adds.
pub(super) fn of_fields(spec: &Field<'_>, domain: &Field<'_>) -> Result<u64, ManifestError> {
    let mut sum: u64 = 0;
    let mut add = |is_there: bool, bytes: u64| {
        if is_there {
            sum = sum.saturating_add(bytes);
        }
    };
    let graphics = flag(domain, &["devices", "autoattachGraphicsDevice"])?;
    add(graphics.unwrap_or(true), VIDEO);
    let architecture = spec.get("architecture")?;
    let architecture = architecture.as_ref().map(Field::text).transpose()?;
    add(architecture == Some("arm64"), ARM64_FLASH);
    add(has_vfio(domain)?, VFIO);
    let mut has_metrics = false;
    for volume in items(spec, &["volumes"])? {
        has_metrics |= volume.get("downwardMetrics")?.is_some();
    }
    add(has_metrics, DOWNWARD_METRICS);
    let liveness = spec.below(&["livenessProbe", "exec"])?.is_some();
    let readiness = spec.below(&["readinessProbe", "exec"])?.is_some();
    add(liveness, PER_PROBE);
    add(readiness, PER_PROBE);
    add(liveness || readiness, PROBES);
    add(node::is_sev(domain)?, SEV);
    let tpm = domain.below(&["devices", "tpm"])?;
    let is_on = tpm.as_ref().map(|tpm| flag(tpm, &["enabled"])).transpose()?;
    add(is_on.is_some_and(|is_on| is_on.unwrap_or(true)), TPM);
    if let Some(reserved) = domain.below(&["memory", "reservedOverhead"])? {
        let added = vm::quantity(&reserved, "addedOverhead")?;
        add(true, added.unwrap_or_default().value());
    }
    Ok(sum)
}

/// Whether a device is passed through: a GPU, another device of the host, or an interface on SR-IOV.
fn has_vfio(domain: &Field<'_>) -> Result<bool, ManifestError> {
    let of_host = [&["devices", "gpus"], &["devices", "hostDevices"]];
    for keys in of_host {
        if !items(domain, keys)?.is_empty() {
            return Ok(true);
        }
    }
    for interface in items(domain, &["devices", "interfaces"])? {
        if interface.get("sriov")?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The whole overhead; `requested`: bytes of `resources.requests.memory`, 0 where that is not given; `of_fields`: what the fields add.
pub(super) fn overhead(requested: u64, vcpus: u64, is_guaranteed: bool, of_fields: u64) -> u64 {
    let parts = [
        // KubeVirt counts the request in units of 1000 bytes.
        requested.div_ceil(1000).saturating_mul(1000) / PAGE_TABLES,
        PROCESSES,
        vcpus.saturating_mul(PER_VCPU),
        if is_guaranteed { GUARANTEED } else { 0 },
        of_fields,
    ];
    parts.into_iter().fold(0, u64::saturating_add)
}
