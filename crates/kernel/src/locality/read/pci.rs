//! PCI and mediated devices in `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::locality::PciDevice;

/// The device with this PCI address, or the mediated device with this UUID; `None` if there is none, or it is a bridge.
pub(in crate::locality) fn device(sys: &Path, address: &str) -> Option<PciDevice> {
    let mediated = sys.join("bus/mdev/devices").join(address);
    let device = match fs::canonicalize(&mediated) {
        Ok(mediated) => part(&mediated, address)?,
        Err(_) => function(&sys.join("bus/pci/devices").join(address))?,
    };
    (!device.is_bridge()).then_some(device)
}

/// A PCI function, at its link in `/sys/bus/pci/devices`.
fn function(link: &Path) -> Option<PciDevice> {
    let address = link.file_name()?.to_str()?.to_owned();
    let number = |file: &str| {
        let text = text(&link.join(file))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    let physical = fs::read_link(link.join("physfn")).ok();
    Some(PciDevice {
        class: number("class")?,
        vendor: id(number("vendor")),
        device: id(number("device")),
        // -1 where the firmware does not report it.
        node: text(&link.join("numa_node")).and_then(|node| node.parse().ok()),
        path: fs::canonicalize(link).map(|path| bridges(&path)).unwrap_or_default(),
        part_of: physical.and_then(|path| last(&path)),
        address,
        ..PciDevice::default()
    })
}

/// A mediated device: a folder in that of the device that it is a part of.
fn part(mediated: &Path, uuid: &str) -> Option<PciDevice> {
    let parent = function(mediated.parent()?)?;
    let kind = fs::read_link(mediated.join("mdev_type")).ok();
    let name = text(&mediated.join("mdev_type/name"));
    Some(PciDevice {
        address: uuid.to_owned(),
        part_of: Some(parent.address.clone()),
        // Not every driver names its types.
        mediated: name
            .or_else(|| kind.and_then(|path| last(&path)))
            .or_else(|| Some("mediated".to_owned())),
        ..parent
    })
}

/// The components from the host bridge on, `pci0000:3a`.
fn bridges(path: &Path) -> Vec<String> {
    let names = path.iter().filter_map(|name| name.to_str());
    names
        .skip_while(|name| !is_host_bridge(name))
        .map(str::to_owned)
        .collect()
}

fn is_host_bridge(name: &str) -> bool {
    name.strip_prefix("pci").is_some_and(|domain| domain.contains(':'))
}

fn id(number: Option<u32>) -> u16 {
    number.and_then(|number| u16::try_from(number).ok()).unwrap_or_default()
}

fn last(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn text(file: &PathBuf) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}
