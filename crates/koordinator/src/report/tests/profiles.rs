use std::collections::BTreeMap;

use serde_json::Value;

use super::schema::{definition, faults};
use crate::report::compact::{self, Compact};
use crate::report::fingerprint::Method;
use crate::report::memory_and_devices::Devices;
use crate::report::profile::{Profile, object};
use crate::report::testing::{facts, large};
use crate::report::{ApiVersion, Facts, NodeResourceTopology, ReportedPod, report};
use stelia_kubelet::PodName;

fn lean(facts: &Facts, profile: Profile, method: Method) -> NodeResourceTopology {
    object(facts, profile, ApiVersion::V1Alpha2, method)
}

fn attribute<'a>(object: &'a NodeResourceTopology, name: &str) -> Option<&'a str> {
    let found = object.attributes.iter().find(|one| one.name == name);
    found.map(|one| one.value.as_str())
}

fn warnings(object: &NodeResourceTopology) -> Vec<String> {
    let annotation = object.metadata.annotations.get("isolation.stelia.io/warnings");
    annotation
        .map(|text| serde_json::from_str(text).unwrap())
        .unwrap_or_default()
}

#[test]
fn every_profile_is_what_the_api_server_takes() {
    let mut odd = facts();
    odd.devices = BTreeMap::from([(
        1,
        BTreeMap::from([("example.com/nic".to_owned(), Devices { all: 4, free: 3 })]),
    )]);
    odd.problems = vec!["a file".to_owned()];
    for facts in [facts(), large(), odd] {
        for profile in Profile::ALL {
            for version in profile.versions() {
                let object = object(&facts, profile, *version, Method::default());
                let json = serde_json::to_value(&object).unwrap();
                assert_eq!(
                    faults(&definition(*version), &json, ""),
                    Vec::<String>::new(),
                    "{profile:?}"
                );
                assert_eq!(json["apiVersion"], version.api_version());
                assert_eq!(serde_json::from_value::<NodeResourceTopology>(json).unwrap(), object);
            }
        }
    }
}

#[test]
fn a_profile_has_the_version_that_its_readers_take() {
    for (profile, own) in [
        (Profile::Koordinator, ApiVersion::V1Alpha1),
        (Profile::Nrt, ApiVersion::V1Alpha2),
        (Profile::Stelia, ApiVersion::V1Alpha2),
    ] {
        assert_eq!(profile.version(None), Some(own));
        assert_eq!(profile.version(Some(ApiVersion::V1Alpha2)), Some(ApiVersion::V1Alpha2));
    }
    // v1alpha1 has no attributes.
    assert_eq!(Profile::Nrt.version(Some(ApiVersion::V1Alpha1)), None);
    assert_eq!(Profile::Stelia.version(Some(ApiVersion::V1Alpha1)), None);
}

#[test]
fn koordinators_profile_is_the_report() {
    for version in ApiVersion::ALL {
        let made = object(&large(), Profile::Koordinator, version, Method::All);
        assert_eq!(made, report(&large(), version));
        assert!(!warnings(&made).iter().any(|warning| warning.contains("fingerprint")));
    }
}

#[test]
fn the_lean_object_has_no_annotations_and_the_same_zones() {
    let lean = lean(&large(), Profile::Nrt, Method::default());
    assert!(lean.metadata.annotations.is_empty());
    assert_eq!(lean.zones, report(&large(), ApiVersion::V1Alpha2).zones);
    let json: Value = serde_json::to_value(&lean).unwrap();
    assert_eq!(
        json["metadata"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["labels", "name"]
    );
}

#[test]
fn our_own_profile_is_the_lean_one_with_one_attribute_more() {
    let (own, nrt) = (Profile::Stelia, Profile::Nrt);
    let mut own = lean(&large(), own, Method::default());
    let last = own.attributes.pop().unwrap();
    assert_eq!(last.name, compact::ATTRIBUTE);
    assert_eq!(Compact::parse(&last.value), Ok(Compact::of(&large())));
    assert_eq!(own, lean(&large(), nrt, Method::default()));
}

#[test]
fn devices_are_in_the_zones_of_the_lean_object_alone() {
    let mut facts = facts();
    let nics = BTreeMap::from([("example.com/nic".to_owned(), Devices { all: 4, free: 3 })]);
    // The second is on a node that is not there.
    facts.devices = BTreeMap::from([(1, nics.clone()), (9, nics)]);
    let lean = lean(&facts, Profile::Nrt, Method::default());
    let found: Vec<_> = lean
        .zones
        .iter()
        .map(|zone| zone.resources.iter().find(|one| one.name == "example.com/nic"))
        .collect();
    assert_eq!(found[0], None);
    let nic = found[1].unwrap();
    assert_eq!(
        (nic.capacity.as_str(), nic.allocatable(), nic.available.as_str()),
        ("4", "4", "3")
    );
    let others = report(&facts, ApiVersion::V1Alpha1).zones;
    assert!(
        others
            .iter()
            .all(|zone| zone.resources.iter().all(|one| one.name != "example.com/nic"))
    );
}

#[test]
fn there_is_no_fingerprint_rather_than_a_wrong_one() {
    let name = "nodeTopologyPodsFingerprint";
    let unknown = lean(&facts(), Profile::Nrt, Method::All);
    assert_eq!(attribute(&unknown, name), None);
    assert_eq!(attribute(&unknown, "nodeTopologyPodsFingerprintMethod"), None);
    assert_eq!(warnings(&unknown), ["no fingerprint of the pods: they are not known"]);

    let mut facts = large();
    let pods = facts.pods.as_mut().unwrap();
    pods.values_mut().find(|pod| !pod.exclusive).unwrap().name = None;
    // A pod that does not count need not be named.
    let exclusive = lean(&facts, Profile::Nrt, Method::WithExclusiveResources);
    assert!(attribute(&exclusive, name).is_some() && warnings(&exclusive).is_empty());
    let all = lean(&facts, Profile::Nrt, Method::All);
    assert_eq!(attribute(&all, name), None);
    assert_eq!(
        warnings(&all),
        ["no fingerprint of the pods: the names of 1 of 132 are not known"]
    );
}

#[test]
fn a_pod_and_its_successor_of_the_same_name_are_one() {
    let mut facts = large();
    let with = |facts: &Facts| lean(facts, Profile::Nrt, Method::All);
    let before = with(&facts);
    let pods = facts.pods.as_mut().unwrap();
    let (uid, twin) = (
        stelia_kubelet::PodUid::parse(&"a".repeat(32)).unwrap(),
        pods.values().next().unwrap().clone(),
    );
    pods.insert(uid.clone(), twin);
    assert_eq!(with(&facts), before);
    let other = ReportedPod {
        name: PodName::new("tenant-b", "vm"),
        exclusive: false,
    };
    facts.pods.as_mut().unwrap().insert(uid, other);
    assert_ne!(with(&facts), before);
}
