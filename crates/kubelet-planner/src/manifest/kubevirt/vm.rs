//! What KubeVirt makes the resources of a VM's container of.

use serde_json::{Map, Value};
use stelia_cpus::quantity::Quantity;

use super::super::error::ManifestError;
use super::super::fields::Field;
use super::{flag, items, memory, number, text};

/// With it KubeVirt makes the number of CPUs even.
const EVEN: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
/// How many vCPUs without CPUs of their own share one (`cpuAllocationRatio`, by default).
const CPU_ALLOCATION_RATIO: u64 = 10;

/// The fields of a VM that its resources depend on.
#[derive(Debug, Default)]
pub(super) struct KubevirtVm {
    pub(super) vcpus: u64,
    io_threads: u64,
    /// The I/O threads are a supplemental pool.
    has_io_pool: bool,
    pub(super) dedicated: bool,
    pub(super) isolates_emulator: bool,
    /// [`EVEN`] is there.
    even: bool,
    pub(super) guest: Option<Quantity>,
    pub(super) huge_pages: Option<HugePages>,
    overcommits_overhead: bool,
    pub(super) architecture: Option<String>,
    /// Resource names of the host's devices, one for each device.
    devices: Vec<String>,
    /// Overhead that single fields cause, in bytes.
    overhead_of_fields: u64,
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
}

/// The page size, as it is written and in bytes.
#[derive(Debug)]
pub(super) struct HugePages {
    written: String,
    pub(super) bytes: u64,
}

/// What the manifest gives itself; an amount of 0 is none.
#[derive(Debug, Default)]
pub(super) struct Amounts {
    pub(super) cpu: Option<Quantity>,
    pub(super) memory: Option<Quantity>,
}

/// An amount; `None` where it is absent.
pub(super) fn quantity(field: &Field<'_>, key: &str) -> Result<Option<Quantity>, ManifestError> {
    let Some(field) = field.get(key)? else {
        return Ok(None);
    };
    let text = field.number_or_text()?;
    let amount = text.parse();
    amount
        .map(Some)
        .map_err(|_| field.wrong(format!("{text:?} is not a quantity, such as 2, 500m or 1Gi")))
}

impl Amounts {
    fn read(domain: &Field<'_>, key: &str) -> Result<Self, ManifestError> {
        let Some(list) = domain.below(&["resources", key])? else {
            return Ok(Self::default());
        };
        let amount = |name: &str| quantity(&list, name).map(|amount| amount.filter(|amount| !amount.is_zero()));
        Ok(Self {
            cpu: amount("cpu")?,
            memory: amount("memory")?,
        })
    }
}

impl KubevirtVm {
    pub(super) fn read(spec: &Field<'_>, domain: &Field<'_>, metadata: &Value) -> Result<Self, ManifestError> {
        let is_on = |keys: &[&str]| flag(domain, keys).map(|is_on| is_on.unwrap_or(false));
        let mut vm = Self {
            vcpus: 0,
            io_threads: match domain.get("ioThreads")? {
                Some(io_threads) => number(&io_threads, "supplementalPoolThreadCount")?,
                None => 0,
            },
            has_io_pool: text(domain, &["ioThreadsPolicy"])? == Some("supplementalPool"),
            dedicated: is_on(&["cpu", "dedicatedCpuPlacement"])?,
            isolates_emulator: is_on(&["cpu", "isolateEmulatorThread"])?,
            even: !metadata["annotations"][EVEN].is_null(),
            guest: None,
            huge_pages: None,
            overcommits_overhead: is_on(&["resources", "overcommitGuestOverhead"])?,
            architecture: text(spec, &["architecture"])?.map(str::to_owned),
            devices: devices(domain)?,
            overhead_of_fields: memory::of_fields(spec, domain)?,
            requests: Amounts::read(domain, "requests")?,
            limits: Amounts::read(domain, "limits")?,
        };
        vm.vcpus = vm.vcpus(domain)?;
        if let Some(memory) = domain.get("memory")? {
            vm.guest = quantity(&memory, "guest")?.filter(|guest| !guest.is_zero());
            if let Some(pages) = memory.get("hugepages")? {
                let written = pages.needed("pageSize")?.text()?.to_owned();
                let bytes = quantity(&pages, "pageSize")?.unwrap_or_default().value();
                vm.huge_pages = Some(HugePages { written, bytes });
            }
        }
        if vm.memory() == 0 {
            return Err(domain.wrong("memory.guest or resources.requests.memory is required"));
        }
        Ok(vm)
    }

    /// The topology; without one, as KubeVirt's webhook fills it in.
    fn vcpus(&self, domain: &Field<'_>) -> Result<u64, ManifestError> {
        let mut vcpus: Option<u64> = None;
        if let Some(cpu) = domain.get("cpu")? {
            for key in ["cores", "sockets", "threads"] {
                match number(&cpu, key)? {
                    0 => {}
                    part => vcpus = Some(vcpus.unwrap_or(1).saturating_mul(part)),
                }
            }
        }
        let amount = self.limits.cpu.or(self.requests.cpu).map(Quantity::value);
        Ok(vcpus.or(amount).unwrap_or(1).max(1))
    }

    /// What is requested for the guest, in bytes.
    fn memory(&self) -> u64 {
        let given = self.requests.memory.or(self.limits.memory).or(self.guest);
        let pages = self.huge_pages.as_ref().map(|pages| pages.bytes);
        given.map(Quantity::value).or(pages).unwrap_or(0)
    }

    /// Whether the manifest's own requests and limits are those of the class Guaranteed.
    fn wants_guaranteed(&self) -> bool {
        let (requests, limits) = (&self.requests, &self.limits);
        // The webhook makes a missing request for CPUs of the limit.
        let cpu = limits.cpu.is_some() && requests.cpu.or(limits.cpu) == limits.cpu;
        let memory = limits.memory.is_some() && requests.memory.or(limits.memory) == limits.memory;
        cpu && memory
    }

    /// KubeVirt's estimate of what the VM's processes need beside the guest's memory.
    pub(super) fn overhead(&self) -> u64 {
        let requested = self.requests.memory.map_or(0, Quantity::value);
        let is_guaranteed = self.dedicated || self.wants_guaranteed();
        memory::overhead(requested, self.vcpus, is_guaranteed, self.overhead_of_fields)
    }

    /// Whether the memory request leaves out the overhead, which the limit includes.
    pub(super) fn is_overhead_unrequested(&self) -> bool {
        self.overcommits_overhead && self.huge_pages.is_none()
    }

    /// The CPUs of a VM with CPUs of its own.
    fn dedicated_cpus(&self) -> u64 {
        let cpus = self.vcpus.saturating_add(self.io_threads);
        // KubeVirt counts a supplemental pool twice here.
        let pool = if self.has_io_pool { self.io_threads } else { 0 };
        let is_even = cpus.saturating_add(pool).is_multiple_of(2);
        let emulator = match (self.isolates_emulator, self.even && is_even) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        cpus.saturating_add(emulator)
    }

    /// The requests and the limits of the container `compute`.
    pub(super) fn resources(&self) -> (Map<String, Value>, Map<String, Value>) {
        let (mut requests, mut limits) = (Map::new(), Map::new());
        let cpus = |milli: u64| Value::String(format!("{milli}m"));
        let bytes = |bytes: u64| Value::String(bytes.to_string());
        if self.dedicated {
            let count = Value::String(self.dedicated_cpus().to_string());
            requests.insert("cpu".to_owned(), count.clone());
            limits.insert("cpu".to_owned(), count);
        } else {
            let shared = self.vcpus.saturating_add(self.io_threads).saturating_mul(1000) / CPU_ALLOCATION_RATIO;
            let given = self.requests.cpu.or(self.limits.cpu).map(Quantity::milli);
            requests.insert("cpu".to_owned(), cpus(given.unwrap_or(shared)));
            if let Some(limit) = self.limits.cpu {
                limits.insert("cpu".to_owned(), cpus(limit.milli()));
            }
        }
        let request = self.memory();
        let limit = if self.dedicated {
            Some(request)
        } else {
            self.limits.memory.map(Quantity::value)
        };
        // The guest's memory consists of huge pages; the rest of the request is ordinary memory.
        let guest = self.guest.map_or(request, Quantity::value);
        let on_pages = self.huge_pages.as_ref().map(|_| guest.min(request));
        if let (Some(pages), Some(amount)) = (&self.huge_pages, on_pages) {
            for list in [&mut requests, &mut limits] {
                list.insert(format!("hugepages-{}", pages.written), bytes(amount));
            }
        }
        let beside = |memory: u64| {
            memory
                .saturating_sub(on_pages.unwrap_or(0))
                .saturating_add(self.overhead())
        };
        let request = if self.is_overhead_unrequested() {
            request
        } else {
            beside(request)
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

/// The resource names of the host's devices. A device without a name is a claim of dynamic resource allocation.
fn devices(domain: &Field<'_>) -> Result<Vec<String>, ManifestError> {
    let mut devices = Vec::new();
    for list in [&["devices", "gpus"], &["devices", "hostDevices"]] {
        for device in items(domain, list)? {
            if let Some(name) = text(&device, &["deviceName"])? {
                devices.push(name.to_owned());
            }
        }
    }
    Ok(devices)
}
