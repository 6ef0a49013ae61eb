//! The VMI that virt-launcher is told, as virt-handler sends it: the VirtualMachineInstance as JSON, and the node's topology.

use serde_json::{Value, json};

use super::rpc::field;

pub const UID: &str = "6f1bd4ae-3f4a-4c58-9c17-2b1f0f3f7a10";
/// Of the VMI, in the namespace `default`.
pub const NAME: &str = "vm";
/// The VM's name in libvirt.
pub const DOMAIN: &str = "default_vm";
/// So many sockets of one vCPU may be plugged in all.
pub const MOST: usize = 4;
/// The volume that is plugged and unplugged.
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

    /// `VMIRequest`: `vmi` with its `vmiJson`, and `options` with `topology`.
    pub fn request(self) -> Vec<u8> {
        let vmi = field(1, self.json().to_string().as_bytes());
        [field(1, &vmi), field(2, &field(4, &topology()))].concat()
    }
}

/// `Topology` of the node: two cells, of four CPUs that are siblings in pairs.
fn topology() -> Vec<u8> {
    let cpu = |id: u8| {
        let siblings = field(2, &[id & !1, id | 1]);
        field(5, &[&[0x08, id], &siblings[..]].concat())
    };
    let cell = |id: u8| {
        let cpus = (4 * id..4 * (id + 1)).flat_map(cpu);
        field(1, &[0x08, id].into_iter().chain(cpus).collect::<Vec<u8>>())
    };
    [0, 1].into_iter().flat_map(cell).collect()
}
