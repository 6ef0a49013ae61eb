//! What kubelet's device plugin offers and gives to containers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use toml::Value;

/// The settings of `stelia-device-plugin`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DevicePluginSettings {
    /// How many VMs the node offers, 1 to 1024. `None`: as many as it has CPUs that can be exclusive.
    pub vms: Option<u32>,
    /// The device nodes that a container gets, as far as they exist: at most 16 absolute paths below `/dev`, none twice.
    pub device_nodes: Vec<PathBuf>,
    /// Whether kubelet is also given the CDI name (Container Device Interface) of the device nodes.
    pub cdi: bool,
}

impl Default for DevicePluginSettings {
    fn default() -> Self {
        let device_nodes = ["/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/net/tun"];
        Self {
            vms: None,
            device_nodes: device_nodes.map(PathBuf::from).into(),
            cdi: false,
        }
    }
}

/// How many VMs a node may offer: kubelet's plugin sends each as a device of its own.
pub(crate) const VMS: RangeInclusive<u64> = 1..=1024;

/// Most device nodes of a container.
const MAX_DEVICE_NODES: usize = 16;

/// A list of device nodes; `None` if it is not allowed.
pub(crate) fn device_nodes(value: &Value) -> Option<Vec<PathBuf>> {
    let words = value.as_array().filter(|words| words.len() <= MAX_DEVICE_NODES)?;
    let paths = words.iter().map(|word| device(word.as_str()?));
    let paths: Vec<PathBuf> = paths.collect::<Option<_>>()?;
    let different: BTreeSet<&PathBuf> = paths.iter().collect();
    (different.len() == paths.len()).then_some(paths)
}

/// The path of a device node, with each component written out: `/dev/a/../b` and `/dev//b` are refused.
fn device(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let below = path.strip_prefix("/dev").ok()?;
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    let written_out = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    let printable = !text.contains(char::is_control);
    (plain && written_out && printable && below.components().count() > 0).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(paths: &[&str]) -> Option<Vec<PathBuf>> {
        device_nodes(&Value::from(paths.to_vec()))
    }

    #[test]
    fn the_devices_are_paths_below_dev_and_none_is_there_twice() {
        assert_eq!(list(&[]), Some(Vec::new()));
        assert_eq!(
            list(&["/dev/kvm", "/dev/net/tun"]),
            Some(vec!["/dev/kvm".into(), "/dev/net/tun".into()])
        );
        for wrong in [
            "/dev",
            "/dev/",
            "kvm",
            "",
            "/etc/shadow",
            "/devices/kvm",
            "/dev/../etc/shadow",
            "/dev/./kvm",
            "/dev//kvm",
            "/dev/kvm/",
            "/dev/k\nvm",
            "/dev/k\0vm",
        ] {
            assert_eq!(list(&[wrong]), None, "{wrong:?}");
        }
        assert_eq!(list(&["/dev/kvm", "/dev/kvm"]), None);
        let many: Vec<String> = (0..=MAX_DEVICE_NODES).map(|number| format!("/dev/{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(list(&many), None);
        assert_eq!(list(&many[1..]).map(|paths| paths.len()), Some(MAX_DEVICE_NODES));
        assert_eq!(device_nodes(&Value::from("/dev/kvm")), None);
    }
}
