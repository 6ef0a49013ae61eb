//! PCI devices: what they are, and how near two of them are to each other, as `lstopo` and `nvidia-smi topo` group them.

use serde::{Deserialize, Serialize};
use stelia_cpus::text::named;

named! {
    /// What a device is, by the first two bytes of its class (`include/linux/pci_ids.h`).
    #[derive(PartialOrd, Ord)]
    pub enum PciKind {
        Gpu = "GPU",
        Accelerator = "accelerator",
        Nic = "NIC",
        Nvme = "NVMe",
        Storage = "storage",
        Audio = "audio",
        Other = "device",
    }
}

named! {
    /// How far apart two devices are: what their traffic passes.
    #[derive(PartialOrd, Ord)]
    pub enum Distance {
        /// One PCIe switch.
        Switch = "PIX",
        /// Several PCIe switches, but not the host bridge.
        Switches = "PXB",
        /// The host bridge of both.
        HostBridge = "PHB",
        /// The interconnect between host bridges of one NUMA node.
        Node = "NODE",
        /// The interconnect between NUMA nodes.
        System = "SYS",
    }
}

impl Distance {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Switch => "one PCIe switch",
            Self::Switches => "several PCIe switches",
            Self::HostBridge => "one host bridge",
            Self::Node => "one NUMA node",
            Self::System => "across NUMA nodes",
        }
    }
}

/// A PCI device of a VM, as `/sys` describes it; or a mediated device, which is a part of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PciDevice {
    /// PCI address, `0000:3b:00.0`; of a mediated device its UUID.
    pub address: String,
    /// The three bytes of the class; of a mediated device its parent's, as all below.
    pub class: u32,
    pub vendor: u16,
    pub device: u16,
    /// NUMA node; `None` where the firmware does not report it.
    pub node: Option<u32>,
    /// From the host bridge (`pci0000:3a`) over all bridges to the device: the path in `/sys/devices`. Empty where that has no host bridge.
    pub path: Vec<String>,
    /// The physical function of a virtual one (SR-IOV), or the device that a mediated device is a part of.
    pub part_of: Option<String>,
    /// The name of a mediated device's type, such as `GRID A100-1-5C`; `None` for any other.
    pub mediated: Option<String>,
    /// The resource by which kubelet gave it to the container.
    pub resource: Option<String>,
}

impl PciDevice {
    pub fn kind(&self) -> PciKind {
        match (self.class >> 16, self.class >> 8) {
            (0x03, _) => PciKind::Gpu,
            (0x12, _) => PciKind::Accelerator,
            (0x02, _) => PciKind::Nic,
            (_, 0x0108) => PciKind::Nvme,
            (0x01, _) => PciKind::Storage,
            (_, 0x0401 | 0x0403) => PciKind::Audio,
            _ => PciKind::Other,
        }
    }

    /// Whether it is a bridge, which belongs to the host even where it shares an IOMMU group with a VM's device.
    pub fn is_bridge(&self) -> bool {
        // Host bridges and those between buses; an NVSwitch is of class 0680 and may be given away.
        matches!(self.class >> 8, 0x0600 | 0x0604 | 0x0609)
    }

    /// `GPU 0000:3b:00.0`.
    pub fn name(&self) -> String {
        format!("{} {}", self.kind().name(), self.address)
    }

    /// What identifies it beyond its name: vendor and device, what it is a part of, and the resource.
    pub fn details(&self) -> String {
        let part = self.part_of.as_ref().map(|whole| match &self.mediated {
            Some(kind) => format!("{kind} of {whole}"),
            None => format!("VF of {whole}"),
        });
        let ids = Some(format!("{:04x}:{:04x}", self.vendor, self.device));
        let all = ids.into_iter().chain(part).chain(self.resource.clone());
        all.collect::<Vec<_>>().join(", ")
    }

    /// Whether this address is its own, or that of the device that it is a part of.
    pub fn is_of(&self, address: &str) -> bool {
        self.address == address || self.part_of.as_deref() == Some(address)
    }

    /// The bridges above it.
    fn bridges(&self) -> &[String] {
        self.path.split_last().map_or(&[], |(_, bridges)| bridges)
    }

    /// How far it is from another one; `None` where neither their bridges nor their NUMA nodes tell.
    pub fn distance(&self, other: &Self) -> Option<Distance> {
        let pairs = self.bridges().iter().zip(other.bridges());
        let common = pairs.take_while(|(one, other)| one == other).count();
        // Below the deepest bridge of both: at most the port of a switch, or more switches.
        let below = |device: &Self| device.bridges().len() - common;
        match (common, self.node, other.node) {
            (0, Some(one), Some(other)) if one == other => Some(Distance::Node),
            (0, Some(_), Some(_)) => Some(Distance::System),
            (0, ..) => None,
            // The first is the host bridge.
            (1, ..) => Some(Distance::HostBridge),
            _ if below(self) <= 1 && below(other) <= 1 => Some(Distance::Switch),
            _ => Some(Distance::Switches),
        }
    }
}

/// A GPU and a network card of one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair<'a> {
    pub gpu: &'a PciDevice,
    pub nic: &'a PciDevice,
    /// `None`: not known.
    pub distance: Option<Distance>,
}

/// Every GPU with every network card, the nearest first.
pub fn pairs(devices: &[PciDevice]) -> Vec<Pair<'_>> {
    let of = |kind: PciKind| devices.iter().filter(move |device| device.kind() == kind);
    let all = of(PciKind::Gpu).flat_map(|gpu| of(PciKind::Nic).map(move |nic| (gpu, nic)));
    let mut pairs: Vec<Pair<'_>> = all
        .map(|(gpu, nic)| Pair {
            gpu,
            nic,
            distance: gpu.distance(nic),
        })
        .collect();
    pairs.sort_by_key(|pair| {
        (
            &pair.gpu.address,
            pair.distance.is_none(),
            pair.distance,
            &pair.nic.address,
        )
    });
    pairs
}
