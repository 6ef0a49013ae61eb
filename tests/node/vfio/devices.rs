//! The node's devices that a guest may have (`node run --vfio`), and the device plugin that gives them to pods.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::quiet::interrupts::{Interrupt, all};
use crate::support::device_plugin::show;
use crate::support::*;

const PROGRAM: &str = "/job/kubelet-devices";
const BUS: &str = "/sys/bus/pci/devices";
pub const IOMMUFD: &str = "/dev/iommu";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    class: &'static str,
    /// What its name in QEMU begins with.
    pub id: &'static str,
    pub resource: &'static str,
}

/// It has 10 vectors, and a guest with 2 CPUs takes 5.
pub const CARD: Kind = Kind {
    class: "0x020000",
    id: "card",
    resource: "vendor.com/card",
};
/// It has 5 vectors: one for administration, and one for each of the guest's CPUs.
pub const DISK: Kind = Kind {
    class: "0x010802",
    id: "disk",
    resource: "vendor.com/disk",
};

/// One of them, at a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub kind: Kind,
    pub address: String,
    pub node: u32,
    pub group: String,
}

impl Given {
    pub fn at(kind: Kind, node: u32) -> Self {
        let found = given().into_iter().find(|one| one.kind == kind && one.node == node);
        found.unwrap_or_else(|| panic!("no {kind:?} at node {node}: {:#?}", given()))
    }

    pub fn path(&self) -> PathBuf {
        Path::new(BUS).join(&self.address)
    }

    /// The name under which `steliactl` shows it.
    pub fn shown(&self) -> String {
        format!("VFIO {}", self.address)
    }

    /// Its interrupts, which it has while a guest's driver has asked for them.
    pub fn vectors(&self) -> Vec<Interrupt> {
        let end = format!("({})", self.address);
        let own = |one: &Interrupt| one.name.starts_with("vfio-msix[") && one.name.ends_with(&end);
        all().into_iter().filter(own).collect()
    }

    pub fn is_vector(&self, name: &str) -> bool {
        name.starts_with("vfio-") && name.ends_with(&format!("({})", self.address))
    }

    /// Its file for iommufd, which a kernel with `CONFIG_VFIO_DEVICE_CDEV` makes when VFIO gets the device.
    pub fn file(&self) -> String {
        let folder = self.path().join("vfio-dev");
        let mut found = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let name = found.next().expect("one file").expect("a name").file_name();
        format!("/dev/vfio/devices/{}", name.display())
    }

    pub fn files_of_group(&self) -> Vec<String> {
        vec![format!("/dev/vfio/{}", self.group), "/dev/vfio/vfio".to_owned()]
    }

    pub fn files_of_iommufd(&self) -> Vec<String> {
        vec![self.file(), IOMMUFD.to_owned()]
    }

    /// Takes it from whatever driver has it: VFIO alone may have it from now on.
    fn hand_over(&self) {
        put(self.path().join("driver_override"), "vfio-pci");
        if !self.path().join("driver").exists() {
            put("/sys/bus/pci/drivers_probe", &self.address);
        }
        let driver = fs::read_link(self.path().join("driver")).expect("its driver");
        assert!(driver.ends_with("vfio-pci"), "{}: {}", self.address, driver.display());
    }
}

pub fn given() -> Vec<Given> {
    let addresses: BTreeSet<PathBuf> = fs::read_dir(BUS).expect(BUS).flatten().map(|e| e.path()).collect();
    let given = addresses.into_iter().filter_map(|path| {
        let class = read(path.join("class"));
        let kind = [CARD, DISK].into_iter().find(|kind| kind.class == class)?;
        // The node's own disk and card belong to no NUMA node.
        let node = read(path.join("numa_node")).parse().ok()?;
        let group = fs::read_link(path.join("iommu_group")).expect("a group of the IOMMU");
        let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
        let (address, group) = (name(&path), name(&group));
        Some(Given {
            kind,
            address,
            node,
            group,
        })
    });
    given.collect()
}

pub struct Plugins {
    _processes: Vec<Killed>,
}

impl Plugins {
    /// kubelet's side, and a plugin for the cards and one for the disks, whose containers get these files of each device.
    pub fn start(files: fn(&Given) -> Vec<String>) -> Self {
        // Without changes of power states, after which QEMU maps the devices' registers anew: less for the emulator to get wrong.
        run("modprobe vfio-pci disable_idle_d3=1");
        let given = given();
        let count = given.len();
        assert_eq!(count, 4, "no devices to give away (node run --vfio): {given:#?}");
        given.iter().for_each(Given::hand_over);
        run("kubelet-standin devices start");
        let mut children = Vec::new();
        for kind in [CARD, DISK] {
            let mut offer = Command::new(PROGRAM);
            offer.args(["offer", kind.resource]).stdin(Stdio::null());
            for one in given.iter().filter(|one| one.kind == kind) {
                let (address, node, files) = (&one.address, one.node, files(one).join(","));
                offer.arg(format!("--device={address}={node}:{files}"));
            }
            children.push(Killed(offer.spawn().expect(PROGRAM)));
            let healthy = || show().resource(kind.resource).healthy.len();
            wait_until_or("the plugin registers", device_plugin::journal, || healthy() == 2);
        }
        Self { _processes: children }
    }
}
