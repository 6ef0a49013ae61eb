//! The pod that KubeVirt's virt-controller makes of a VirtualMachineInstance, as far as kubelet's managers and the scheduler depend on it.
//!
//! The rules are those of KubeVirt 1.8 (`pkg/virt-controller/services/renderresources.go`): CPUs of `dedicatedCpuPlacement` are the vCPUs, the
//! threads of a supplemental pool and one for `isolateEmulatorThread`; memory is the guest's and an overhead that KubeVirt estimates.

use serde_json::{Map, Value, json};
use stelia_cpus::quantity::Quantity;

use super::error::ManifestError;
use super::fields::Field;

/// With it KubeVirt makes the number of CPUs even.
const EVEN: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
/// How many vCPUs without CPUs of their own share one (`cpuAllocationRatio`, by default).
const CPU_ALLOCATION_RATIO: u64 = 10;

const MIB: u64 = 1 << 20;
/// What virt-launcher, its monitor, virtlogd, virtqemud, QEMU and an I/O thread take.
const PROCESSES: u64 = (100 + 25 + 25 + 40 + 30 + 8) * MIB;
const PER_VCPU: u64 = 8 * MIB;
const VIDEO: u64 = 32 * MIB;
/// One byte of page tables for this much memory.
const PAGE_TABLES: u64 = 512;
/// With a device of the host.
const VFIO: u64 = 1 << 30;

/// The fields of the VM's `spec` that its pod has too.
const SHARED_FIELDS: [&str; 3] = ["nodeSelector", "affinity", "tolerations"];

/// A VM whose size is in another object cannot be planned for.
pub(super) fn refuse_instance_type(object: &Value) -> Result<(), ManifestError> {
    match object["spec"]["instancetype"].is_null() {
        true => Ok(()),
        false => Err(ManifestError::Wrong {
            path: "spec.instancetype".to_owned(),
            what: "the VM's size is in another object, the instance type: give the VirtualMachineInstance that KubeVirt made of it".to_owned(),
        }),
    }
}

/// The pod's `spec`, and what was assumed.
pub(super) fn pod_spec(spec: &Field<'_>, metadata: &Value) -> Result<(Value, Vec<String>), ManifestError> {
    let domain = spec.needed("domain")?;
    let vm = Vm::read(&domain, metadata)?;
    let (requests, limits) = vm.resources();
    let mut made = json!({
        "containers": [{"name": "compute", "resources": {"requests": requests, "limits": limits}}],
    });
    for name in SHARED_FIELDS {
        if let Some(field) = spec.get(name)? {
            made[name] = field.value().clone();
        }
    }
    let assumed = vec![format!(
        "the pod is the one that KubeVirt 1.8 would make by its defaults, with {} MiB of memory beside the guest's; containers other than \
         compute, devices of networks and KubeVirt's own settings are not considered",
        vm.overhead() / MIB
    )];
    Ok((made, assumed))
}

/// What KubeVirt makes the resources of.
#[derive(Debug, Default)]
struct Vm {
    vcpus: u64,
    io_threads: u64,
    dedicated: bool,
    isolates_emulator: bool,
    /// [`EVEN`] is there.
    even: bool,
    /// Bytes.
    guest: Option<u64>,
    /// The page size, such as `2Mi`.
    huge_pages: Option<String>,
    overcommits_overhead: bool,
    has_graphics: bool,
    /// Resource names of the host's devices, one for each device.
    devices: Vec<String>,
    requests: Amounts,
    limits: Amounts,
}

/// What the manifest gives itself.
#[derive(Debug, Default)]
struct Amounts {
    milli_cpus: Option<u64>,
    memory: Option<u64>,
}

fn quantity(field: &Field<'_>, key: &str) -> Result<Option<Quantity>, ManifestError> {
    let Some(field) = field.get(key)? else {
        return Ok(None);
    };
    let text = field.number_or_text()?;
    let amount = text.parse();
    amount
        .map(Some)
        .map_err(|_| field.wrong(format!("{text:?} is not a quantity, such as 2, 500m or 1Gi")))
}

fn number(field: &Field<'_>, key: &str) -> Result<u64, ManifestError> {
    let Some(field) = field.get(key)? else { return Ok(0) };
    field.value().as_u64().ok_or_else(|| field.wrong("it must be a number"))
}

fn flag(field: &Field<'_>, key: &str) -> Result<Option<bool>, ManifestError> {
    let Some(field) = field.get(key)? else { return Ok(None) };
    let value = field.value().as_bool();
    value.map(Some).ok_or_else(|| field.wrong("it must be true or false"))
}

impl Amounts {
    fn read(resources: Option<&Field<'_>>, key: &str) -> Result<Self, ManifestError> {
        let Some(list) = resources.map(|field| field.get(key)).transpose()?.flatten() else {
            return Ok(Self::default());
        };
        Ok(Self {
            milli_cpus: quantity(&list, "cpu")?.map(Quantity::milli),
            memory: quantity(&list, "memory")?.map(Quantity::value),
        })
    }
}

impl Vm {
    fn read(domain: &Field<'_>, metadata: &Value) -> Result<Self, ManifestError> {
        let mut vm = Self {
            even: !metadata["annotations"][EVEN].is_null(),
            has_graphics: true,
            ..Self::default()
        };
        let resources = domain.get("resources")?;
        vm.requests = Amounts::read(resources.as_ref(), "requests")?;
        vm.limits = Amounts::read(resources.as_ref(), "limits")?;
        if let Some(resources) = &resources {
            vm.overcommits_overhead = flag(resources, "overcommitGuestOverhead")?.unwrap_or(false);
        }
        if let Some(cpu) = domain.get("cpu")? {
            let parts = [
                number(&cpu, "cores")?,
                number(&cpu, "sockets")?,
                number(&cpu, "threads")?,
            ];
            let given = parts.iter().filter(|part| **part > 0);
            vm.vcpus = match parts.iter().all(|part| *part == 0) {
                true => 0,
                false => given.fold(1, |all: u64, part| all.saturating_mul(*part)),
            };
            vm.dedicated = flag(&cpu, "dedicatedCpuPlacement")?.unwrap_or(false);
            vm.isolates_emulator = flag(&cpu, "isolateEmulatorThread")?.unwrap_or(false);
        }
        if vm.vcpus == 0 {
            // As KubeVirt's webhook fills in the topology.
            let milli = vm.limits.milli_cpus.or(vm.requests.milli_cpus).unwrap_or(1000);
            vm.vcpus = milli.div_ceil(1000).max(1);
        }
        if let Some(io_threads) = domain.get("ioThreads")? {
            vm.io_threads = number(&io_threads, "supplementalPoolThreadCount")?;
        }
        if let Some(memory) = domain.get("memory")? {
            vm.guest = quantity(&memory, "guest")?.map(Quantity::value);
            if let Some(pages) = memory.get("hugepages")? {
                vm.huge_pages = Some(pages.needed("pageSize")?.text()?.to_owned());
            }
        }
        if let Some(devices) = domain.get("devices")? {
            vm.has_graphics = flag(&devices, "autoattachGraphicsDevice")?.unwrap_or(true);
            for list in ["gpus", "hostDevices"] {
                let Some(list) = devices.get(list)? else { continue };
                for device in list.items()? {
                    // A device without a name is a claim of dynamic resource allocation.
                    if let Some(name) = device.get("deviceName")? {
                        vm.devices.push(name.text()?.to_owned());
                    }
                }
            }
        }
        if vm.memory().is_none() {
            return Err(domain.wrong("memory.guest or resources.requests.memory is required"));
        }
        Ok(vm)
    }

    /// What the manifest requests for the guest.
    fn memory(&self) -> Option<u64> {
        self.requests.memory.or(self.limits.memory).or(self.guest)
    }

    /// KubeVirt's estimate of what the VM's processes need beside the guest's memory.
    fn overhead(&self) -> u64 {
        let parts = [
            self.requests.memory.or(self.guest).unwrap_or(0) / PAGE_TABLES,
            PROCESSES,
            self.vcpus.saturating_mul(PER_VCPU),
            if self.has_graphics { VIDEO } else { 0 },
            if self.devices.is_empty() { 0 } else { VFIO },
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The CPUs of a VM with CPUs of its own.
    fn dedicated_cpus(&self) -> u64 {
        let cpus = self.vcpus.saturating_add(self.io_threads);
        let emulator = match (self.isolates_emulator, self.even && cpus.is_multiple_of(2)) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        cpus.saturating_add(emulator)
    }

    /// The requests and the limits of the container `compute`.
    fn resources(&self) -> (Map<String, Value>, Map<String, Value>) {
        let (mut requests, mut limits) = (Map::new(), Map::new());
        let cpus = |milli: u64| Value::String(format!("{milli}m"));
        let bytes = |bytes: u64| Value::String(bytes.to_string());
        if self.dedicated {
            let count = Value::String(self.dedicated_cpus().to_string());
            requests.insert("cpu".to_owned(), count.clone());
            limits.insert("cpu".to_owned(), count);
        } else {
            let shared = self.vcpus.saturating_add(self.io_threads).saturating_mul(1000) / CPU_ALLOCATION_RATIO;
            let request = self.requests.milli_cpus.or(self.limits.milli_cpus).unwrap_or(shared);
            requests.insert("cpu".to_owned(), cpus(request));
            if let Some(limit) = self.limits.milli_cpus {
                limits.insert("cpu".to_owned(), cpus(limit));
            }
        }
        let request = self.memory().unwrap_or(0);
        let limit = match self.dedicated {
            true => Some(request),
            false => self.limits.memory,
        };
        // The guest's memory consists of huge pages; the rest of the request is ordinary memory.
        let on_pages = self
            .huge_pages
            .as_ref()
            .map(|_| self.guest.unwrap_or(request).min(request));
        if let (Some(size), Some(pages)) = (&self.huge_pages, on_pages) {
            for list in [&mut requests, &mut limits] {
                list.insert(format!("hugepages-{size}"), bytes(pages));
            }
        }
        let beside = |memory: u64| {
            memory
                .saturating_sub(on_pages.unwrap_or(0))
                .saturating_add(self.overhead())
        };
        let request = match self.overcommits_overhead && self.huge_pages.is_none() && !self.dedicated {
            true => request,
            false => beside(request),
        };
        requests.insert("memory".to_owned(), bytes(request));
        if let Some(limit) = limit {
            limits.insert("memory".to_owned(), bytes(beside(limit)));
        }
        for name in &self.devices {
            let count = self.devices.iter().filter(|other| *other == name).count();
            for list in [&mut requests, &mut limits] {
                list.insert(name.clone(), Value::String(count.to_string()));
            }
        }
        (requests, limits)
    }
}
