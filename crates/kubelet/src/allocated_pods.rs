//! `allocated_pods_state` and `actuated_pods_state`: the resources that kubelet gave to containers, from 1.33 to 1.37.
//!
//! Source: kubelet's `allocation/state/checkpoint.go`. Both files have one shape, and a kubelet that cannot read one of them panics when it starts
//! (`newStateImpl` of `allocation_manager.go`), unless the feature gate InPlacePodVerticalScaling is off.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::checksum;
use crate::cpu_manager_state::{CheckpointError, content, json, unknown};

/// File name in kubelet's root directory: what kubelet admitted.
pub const ALLOCATED_PODS_STATE: &str = "allocated_pods_state";
/// File name in kubelet's root directory: what the runtime accepted.
pub const ACTUATED_PODS_STATE: &str = "actuated_pods_state";

/// The requests of containers, as they are written: `cpu` is `1500m`.
pub type Requests = BTreeMap<String, String>;

/// The parsed content of one of the files, its checksum verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocatedPods {
    /// The requests by pod UID and container; those of the pod as a whole, without a name, replace its containers'. Init containers that end are
    /// there only if kubelet can resize them (1.36). A pod that ended stays until kubelet writes the file again.
    pub pods: BTreeMap<String, BTreeMap<String, Requests>>,
}

/// kubelet takes a missing field for an empty one, whose checksum does not fit.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    data: String,
    #[serde(default)]
    checksum: u64,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

/// Without unknown keys: a newer kubelet may have the requests there.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    #[serde(default)]
    entries: Option<BTreeMap<String, Pod>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pod {
    #[serde(rename = "ContainerResources", default)]
    containers: Option<BTreeMap<String, Resources>>,
    #[serde(rename = "PodLevelResources", default)]
    whole: Option<Resources>,
    #[serde(rename = "EmptyDirVolumeLimits", default)]
    _volumes: IgnoredAny,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    requests: Option<Requests>,
}

impl AllocatedPods {
    /// Parse and check the bytes of a file.
    ///
    /// # Errors
    /// Every [`CheckpointError`] except those about CPUs.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let content = content(bytes)?;
        if matches!(content.first(), Some(0x0a | 0x12)) {
            return Err(unknown(
                "it looks like Protobuf, not JSON: a newer kubelet may have written it",
            ));
        }
        let file: File = json(content)?;
        if file.data.is_empty() && !file.others.is_empty() {
            return Err(unknown("it has other keys instead of data"));
        }
        let computed = checksum::of_data(&file.data);
        if file.checksum != u64::from(computed) {
            let found = u32::try_from(file.checksum).unwrap_or(u32::MAX);
            return Err(CheckpointError::Checksum { found, computed });
        }
        let data: Data = json(file.data.as_bytes())?;
        let pods = data.entries.into_iter().flatten();
        Ok(Self {
            pods: pods.map(|(uid, pod)| (uid, pod.requests())).collect(),
        })
    }
}

impl Pod {
    fn requests(self) -> BTreeMap<String, Requests> {
        let whole = self.whole.and_then(|whole| whole.requests).unwrap_or_default();
        let own = |own: Resources| {
            let mut requests = own.requests.unwrap_or_default();
            requests.retain(|resource, _| !whole.contains_key(resource));
            requests
        };
        let containers = self.containers.into_iter().flatten();
        let mut all: BTreeMap<String, Requests> = containers.map(|(name, one)| (name, own(one))).collect();
        if !whole.is_empty() {
            all.insert(String::new(), whole);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(data: &str) -> Vec<u8> {
        let quoted = serde_json::Value::from(data);
        format!(r#"{{"data":{quoted},"checksum":{}}}"#, checksum::of_data(data)).into_bytes()
    }

    #[test]
    fn the_requests_of_containers_are_read() {
        let data = r#"{"entries":{"e49ac32c-22a3-4c8c-8be3-721bd1fd9eaa":{"ContainerResources":{"vm":{"limits":{"cpu":"2"},"requests":{"cpu":"2"}},"log":{}},"PodLevelResources":null}}}"#;
        let read = AllocatedPods::parse(&file(data)).unwrap();
        let pod = &read.pods["e49ac32c-22a3-4c8c-8be3-721bd1fd9eaa"];
        assert_eq!((pod["vm"]["cpu"].as_str(), pod["log"].len()), ("2", 0));
        assert!(AllocatedPods::parse(&file("{}")).unwrap().pods.is_empty());
    }

    #[test]
    fn requests_of_a_pod_as_a_whole_replace_those_of_its_containers() {
        let data = r#"{"entries":{"uid":{"ContainerResources":{"vm":{"requests":{"cpu":"2","memory":"1Gi"}}},"PodLevelResources":{"requests":{"cpu":"3"}},"EmptyDirVolumeLimits":{"cache":"1Gi"}}}}"#;
        let read = AllocatedPods::parse(&file(data)).unwrap();
        let requests: Vec<(&str, &str)> = read.pods["uid"]
            .values()
            .flatten()
            .map(|(resource, amount)| (resource.as_str(), amount.as_str()))
            .collect();
        assert_eq!(requests, [("cpu", "3"), ("memory", "1Gi")]);
    }

    /// Those of kubelets after 1.37, by the branches under discussion.
    #[test]
    fn a_file_of_another_schema_is_not_called_damaged() {
        let json = [r#"{"entries":{"uid":{"podSpec":{}}}}"#, r#"{"items":[]}"#].map(file);
        let others = [b"\n\0\x12\x05\n\x03uid".to_vec(), br#"{"pods":[]}"#.to_vec()];
        for bytes in json.into_iter().chain(others) {
            let error = AllocatedPods::parse(&bytes).unwrap_err();
            assert!(!error.is_damage(), "{error}");
        }
    }

    #[test]
    fn a_damaged_file_is_refused_wherever_it_is_cut() {
        let whole = file(r#"{"entries":{}}"#);
        for end in 0..whole.len() {
            let error = AllocatedPods::parse(&whole[..end]).unwrap_err();
            assert!(error.is_damage(), "{end}: {error}");
        }
        for without_data in ["{}", r#"{"checksum":7}"#, r#"{"data":"{}"}"#] {
            let error = AllocatedPods::parse(without_data.as_bytes()).unwrap_err();
            assert!(error.is_damage(), "{without_data}: {error}");
        }
        let changed = String::from_utf8(whole).unwrap().replace("entries", "Entries");
        assert!(AllocatedPods::parse(changed.as_bytes()).unwrap_err().is_damage());
        assert!(AllocatedPods::parse(&[0; 300]).unwrap_err().is_damage());
    }
}
