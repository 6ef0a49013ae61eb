//! The VMs that KubeVirt's webhook refuses, as far as CPUs and memory are concerned. Rules that depend on KubeVirt's settings are left out.

use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt::excerpt;

use super::super::error::ManifestError;
use super::super::fields::Field;
use super::vm::KubevirtVm;
use super::{items, number, text};

/// The policies of a CPU feature; without one it is required.
const FEATURE_POLICIES: [&str; 5] = ["force", "require", "optional", "disable", "forbid"];

pub(super) fn check(spec: &Field<'_>, domain: &Field<'_>, vm: &KubevirtVm) -> Result<(), ManifestError> {
    check_resources(domain, vm)?;
    check_pages(domain, vm)?;
    if vm.dedicated {
        check_dedicated(spec, domain, vm)?;
    }
    check_cpu(domain, vm)
}

/// A field of `resources` that is there.
fn wrong_resource(domain: &Field<'_>, kind: &str, name: &str, what: String) -> ManifestError {
    let keys = ["resources", kind, name];
    match domain.below(&keys) {
        Ok(found) => found.as_ref().unwrap_or(domain).wrong(what),
        Err(cause) => cause,
    }
}

/// Requests are not more than limits.
fn check_resources(domain: &Field<'_>, vm: &KubevirtVm) -> Result<(), ManifestError> {
    let pairs = [
        ("cpu", vm.requests.cpu, vm.limits.cpu),
        ("memory", vm.requests.memory, vm.limits.memory),
    ];
    for (name, request, limit) in pairs {
        if let (Some(request), Some(limit)) = (request, limit)
            && request > limit
        {
            let what = format!("{request} is more than the limit, {limit}");
            return Err(wrong_resource(domain, "requests", name, what));
        }
    }
    Ok(())
}

/// The guest's memory consists of whole huge pages.
fn check_pages(domain: &Field<'_>, vm: &KubevirtVm) -> Result<(), ManifestError> {
    let (Some(field), Some(pages)) = (domain.below(&["memory", "hugepages", "pageSize"])?, &vm.huge_pages) else {
        return Ok(());
    };
    let memory = vm.requests.memory.or(vm.guest).or(vm.limits.memory);
    let size = pages.bytes;
    match memory.map(Quantity::value) {
        Some(bytes) if size == 0 || !bytes.is_multiple_of(size) => {
            Err(field.wrong(format!("the VM's memory, {bytes} bytes, is not a multiple of it")))
        }
        _ => Ok(()),
    }
}

/// With `dedicatedCpuPlacement`.
fn check_dedicated(spec: &Field<'_>, domain: &Field<'_>, vm: &KubevirtVm) -> Result<(), ManifestError> {
    let threads = match domain.get("cpu")? {
        Some(cpu) => number(&cpu, "threads")?,
        None => 0,
    };
    let is_arm = text(spec, &["architecture"])? == Some("arm64");
    let most = if is_arm { 1 } else { 2 };
    if threads > most
        && let Some(field) = domain.below(&["cpu", "threads"])?
    {
        let what = if is_arm {
            "a core of arm64 has one thread"
        } else {
            "dedicatedCpuPlacement allows at most two threads for a core"
        };
        return Err(field.wrong(what));
    }
    for (kind, amounts) in [("requests", &vm.requests), ("limits", &vm.limits)] {
        if let Some(cpu) = amounts.cpu.filter(|cpu| !cpu.is_whole()) {
            let what = format!("{cpu} is not a whole number of CPUs, which dedicatedCpuPlacement needs");
            return Err(wrong_resource(domain, kind, "cpu", what));
        }
    }
    if let (Some(request), Some(limit)) = (vm.requests.memory, vm.limits.memory)
        && request != limit
    {
        let what =
            format!("{request} is requested and the limit is {limit}: dedicatedCpuPlacement needs equal amounts");
        return Err(wrong_resource(domain, "requests", "memory", what));
    }
    let given = (vm.requests.cpu, vm.limits.cpu);
    if let (Some(request), Some(limit)) = given
        && request != limit
    {
        let what =
            format!("{request} is requested and the limit is {limit}: dedicatedCpuPlacement needs equal amounts");
        return Err(wrong_resource(domain, "requests", "cpu", what));
    }
    // A limit alone is also the request.
    let (kind, cpus) = match given {
        (Some(request), _) => ("requests", request.value()),
        (None, Some(limit)) => ("limits", limit.value()),
        (None, None) => return Ok(()),
    };
    if cpus == vm.vcpus {
        return Ok(());
    }
    let what = format!(
        "{cpus} CPUs differ from the VM's {} vCPUs (sockets × cores × threads), which dedicatedCpuPlacement does not allow",
        vm.vcpus
    );
    Err(wrong_resource(domain, kind, "cpu", what))
}

/// What of `cpu` needs something else.
fn check_cpu(domain: &Field<'_>, vm: &KubevirtVm) -> Result<(), ManifestError> {
    const DEDICATED: &str = "it needs dedicatedCpuPlacement";
    if let Some(field) = domain.below(&["cpu", "isolateEmulatorThread"])?
        && vm.isolates_emulator
        && !vm.dedicated
    {
        return Err(field.wrong(DEDICATED));
    }
    let numa = domain.below(&["cpu", "numa", "guestMappingPassthrough"])?;
    if let Some(field) = &numa {
        if !vm.dedicated {
            return Err(field.wrong(DEDICATED));
        }
        if vm.huge_pages.is_none() {
            return Err(field.wrong("it needs memory.hugepages"));
        }
    }
    if let Some(field) = domain.below(&["cpu", "realtime"])? {
        if !vm.dedicated {
            return Err(field.wrong(DEDICATED));
        }
        if numa.is_none() {
            return Err(field.wrong("it needs numa.guestMappingPassthrough"));
        }
    }
    for feature in items(domain, &["cpu", "features"])? {
        if let Some(policy) = text(&feature, &["policy"])?
            && !FEATURE_POLICIES.contains(&policy)
        {
            let what = format!("{:?} is not a policy of a CPU feature", excerpt(policy));
            return Err(feature.needed("policy")?.wrong(what));
        }
    }
    Ok(())
}
