//! The VMI that virt-launcher is told, as virt-handler sends it: the VirtualMachineInstance as JSON, and the node's topology.

use prost::Message;
use serde_json::{Value, json};

pub const UID: &str = "6f1bd4ae-3f4a-4c58-9c17-2b1f0f3f7a10";
/// Of the VMI, in the namespace `default`.
pub const NAME: &str = "vm";
/// The VM's name in libvirt.
pub const DOMAIN: &str = "default_vm";
/// So many sockets of one vCPU may be plugged in all.
pub const MOST: usize = 4;
pub const VOLUME: &str = "data";

/// What of the VMI changes.
#[derive(Debug, Clone, Copy)]
pub struct Vmi {
    pub vcpus: usize,
    /// `isolateEmulatorThread`: virt-handler has one CPU more asked for.
    pub isolate: bool,
    pub has_volume: bool,
    pub is_running: bool,
}

impl Vmi {
    pub fn new(vcpus: usize) -> Self {
        Self {
            vcpus,
            isolate: false,
            has_volume: false,
            is_running: true,
        }
    }

    fn json(self) -> Value {
        let mut disks = vec![json!({"name": "root", "disk": {"bus": "virtio"}})];
        let mut volumes = vec![json!({
            "name": "root",
            "hostDisk": {"path": "/root-volume/disk.img", "type": "Disk", "capacity": "1Mi"},
        })];
        let mut status = vec![json!({"name": "root", "target": "vda"})];
        if self.has_volume {
            disks.push(json!({"name": VOLUME, "disk": {"bus": "scsi"}}));
            volumes.push(json!({
                "name": VOLUME,
                "persistentVolumeClaim": {"claimName": VOLUME, "hotpluggable": true},
            }));
            status.push(json!({"name": VOLUME, "phase": "Ready", "hotplugVolume": {"attachPodName": "hp-volume"}}));
        }
        let resources = json!({"cpu": self.vcpus.to_string(), "memory": "64Mi"});
        let phase = if self.is_running { "Running" } else { "Scheduled" };
        json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": NAME, "namespace": "default", "uid": UID},
            "spec": {
                "architecture": "amd64",
                "terminationGracePeriodSeconds": 5,
                "volumes": volumes,
                "domain": {
                    "machine": {"type": "q35"},
                    "firmware": {"uuid": UID},
                    "features": {"acpi": {}},
                    "cpu": {
                        "sockets": self.vcpus,
                        "cores": 1,
                        "threads": 1,
                        "maxSockets": MOST,
                        "model": "host-passthrough",
                        "dedicatedCpuPlacement": true,
                        "isolateEmulatorThread": self.isolate,
                    },
                    "memory": {"guest": "64Mi"},
                    "resources": {"requests": resources.clone(), "limits": resources},
                    "devices": {
                        "disks": disks,
                        "interfaces": [],
                        "autoattachGraphicsDevice": false,
                        "autoattachPodInterface": false,
                    },
                },
            },
            "status": {"phase": phase, "volumeStatus": status},
        })
    }

    pub fn request(self) -> VmiRequest {
        let cpu = |id: u32| Cpu {
            id,
            siblings: vec![id & !1, id | 1],
        };
        let cell = |id: u32| Cell {
            id,
            cpus: (4 * id..4 * (id + 1)).map(cpu).collect(),
        };
        // Of the node: two cells, of four CPUs that are siblings in pairs.
        let topology = Topology {
            numa_cells: vec![cell(0), cell(1)],
        };
        VmiRequest {
            vmi: Some(VmiMessage {
                vmi_json: self.json().to_string().into_bytes(),
            }),
            options: Some(VmiOptions {
                topology: Some(topology),
            }),
        }
    }
}

/// `VMIRequest`, and what it consists of, as far as they are used here.
#[derive(Clone, PartialEq, Message)]
pub struct VmiRequest {
    #[prost(message, tag = "1")]
    vmi: Option<VmiMessage>,
    #[prost(message, tag = "2")]
    options: Option<VmiOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct VmiMessage {
    #[prost(bytes = "vec", tag = "1")]
    vmi_json: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct VmiOptions {
    #[prost(message, tag = "4")]
    topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
struct Topology {
    #[prost(message, repeated, tag = "1")]
    numa_cells: Vec<Cell>,
}

#[derive(Clone, PartialEq, Message)]
struct Cell {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(message, repeated, tag = "5")]
    cpus: Vec<Cpu>,
}

#[derive(Clone, PartialEq, Message)]
struct Cpu {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(uint32, repeated, tag = "2")]
    siblings: Vec<u32>,
}
