//! A node's devices where no file of kubelet has them: counted by the node's object, or given as text (`--devices`).

use std::collections::BTreeMap;

use kubelet_planner::devices::DeviceState;
use stelia_koordinator::report::memory_and_devices;

/// Limit of the devices of a resource on a NUMA node.
const MAX_DEVICES: u64 = 4096;

/// Devices of one resource, in words: `example.com/gpu=0:4,1:3/4` are four free ones at NUMA node 0, and four at 1 of which
/// three are free. Without `NODE:` they have no NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceWords {
    resource: String,
    /// NUMA node, free devices, all devices.
    counts: Vec<(Option<u32>, u64, u64)>,
}

impl std::str::FromStr for DeviceWords {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected RESOURCE=NODE:COUNT,… or RESOURCE=NODE:FREE/COUNT,…, or RESOURCE=COUNT for devices without a NUMA node, found {text:?}"
            )
        };
        let (resource, counts) = text.split_once('=').ok_or_else(wrong)?;
        let count = |word: &str| {
            let (node, count) = match word.split_once(':') {
                Some((node, count)) => (Some(node.parse::<u32>().ok().filter(|node| *node < u64::BITS)?), count),
                None => (None, word),
            };
            let (free, all) = count.split_once('/').unwrap_or((count, count));
            let (free, all): (u64, u64) = (free.parse().ok()?, all.parse().ok()?);
            (free <= all && all <= MAX_DEVICES).then_some((node, free, all))
        };
        let counts: Option<Vec<_>> = counts.split(',').map(count).collect();
        // What has no domain is a resource of the node itself.
        let counts = counts.filter(|_| resource.contains('/')).ok_or_else(wrong)?;
        let mut nodes: Vec<Option<u32>> = counts.iter().map(|(node, ..)| *node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() == counts.len() {
            Ok(Self {
                resource: resource.to_owned(),
                counts,
            })
        } else {
            Err(format!("a NUMA node is there twice in {text:?}"))
        }
    }
}

impl DeviceWords {
    /// Replaces what is known of the resource.
    pub fn apply(&self, state: &mut DeviceState) {
        state.forget(&self.resource);
        for (node, free, all) in &self.counts {
            state.add_counted(&self.resource, *node, *all, *free);
        }
    }

    pub fn resource(&self) -> &str {
        &self.resource
    }
}

/// The devices that an object counts.
pub(crate) fn counted(by_node: &BTreeMap<u32, BTreeMap<String, memory_and_devices::Devices>>) -> DeviceState {
    let mut state = DeviceState::default();
    for (node, resources) in by_node {
        for (resource, devices) in resources {
            state.add_counted(resource, Some(*node), devices.all as u64, devices.free as u64);
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GPU: &str = "example.com/gpu";

    #[test]
    fn devices_in_words_replace_what_is_known() {
        let mut state = DeviceState::default();
        state.add_counted(GPU, Some(3), 9, 9);
        state.add_counted("example.com/nic", Some(0), 1, 1);
        let words: DeviceWords = "example.com/gpu=0:2,1:1/2".parse().unwrap();
        assert_eq!(words.resource(), GPU);
        words.apply(&mut state);
        let places: Vec<u32> = state.resources[GPU]
            .values()
            .flat_map(|device| device.nodes.clone())
            .collect();
        assert_eq!(places, [0, 0, 1, 1]);
        assert_eq!(state.available(GPU).len(), 3);
        assert_eq!(state.available("example.com/nic").len(), 1);
        let without: DeviceWords = "example.com/gpu=8".parse().unwrap();
        without.apply(&mut state);
        assert_eq!(state.available(GPU).len(), 8);
        assert!(state.resources[GPU].values().all(|device| device.nodes.is_empty()));
    }

    #[rstest]
    #[case("example.com/gpu")]
    #[case("example.com/gpu=")]
    #[case("cpu=0:4")]
    #[case("example.com/gpu=0:x")]
    #[case("example.com/gpu=64:1")]
    #[case("example.com/gpu=-1:1")]
    #[case("example.com/gpu=0:5/4")]
    #[case("example.com/gpu=0:4097")]
    #[case("example.com/gpu=0:1,0:2")]
    fn other_words_are_refused(#[case] text: &str) {
        let error = text.parse::<DeviceWords>().unwrap_err();
        assert!(error.contains(text), "{error}");
        assert!(error.contains("RESOURCE=COUNT") || error.contains("twice"), "{error}");
    }
}
