use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::report::annotations;
use crate::report::fingerprint::Method;
use crate::report::profile::object;
use crate::report::testing::{cpus, facts, large};

/// The object as the API server returns it, with what it and others add.
fn kept(facts: &Facts, profile: Profile, version: ApiVersion) -> Value {
    let mut object = serde_json::to_value(object(facts, profile, version, Method::default())).unwrap();
    let metadata = &mut object["metadata"];
    metadata["uid"] = json!("5ceda12c-3ee9-40fa-9f42-61428fe654a6");
    metadata["resourceVersion"] = json!("17");
    metadata["managedFields"] = json!([{"manager": "steliad", "time": "2026-10-01T10:00:00Z"}]);
    metadata["labels"]["team"] = json!("a");
    metadata["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!("{}");
    object["zones"].as_array_mut().unwrap().push(json!({
        "name": "gpu-1", "type": "Device", "parent": "node-1", "resources": [],
    }));
    object["zones"][0]["resources"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|one| {
            if let Ok(number) = one["available"].as_str().unwrap().parse::<u64>() {
                one["available"] = json!(number);
            }
        });
    object
}

fn read(object: &Value) -> Stored {
    Stored::read(&object.to_string()).unwrap()
}

#[test]
fn a_node_is_read_from_every_profile_as_far_as_that_goes() {
    let node = facts();
    let mut lean = kept(&node, Profile::Nrt, ApiVersion::V1Alpha2);
    lean["attributes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": STATE, "value": "unusable"}));
    lean["attributes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": SUMMARY, "value": r#"{"version":"0.1.0","reason":"Ready","instances":{"isolated":3},"degraded":0,"waiting_too_long":0,"more":1}"#}));
    let nrt = read(&lean);
    let summary = nrt.summary.unwrap();
    assert_eq!((summary.version.as_str(), summary.instances["isolated"]), ("0.1.0", 3));
    assert_eq!((nrt.profile, nrt.facts, nrt.holders), (Profile::Nrt, None, Vec::new()));
    assert_eq!(nrt.alignment, node.kubelet.alignment);
    assert_eq!(nrt.state.as_deref(), Some("unusable"));
    assert_eq!(nrt.zones[&1]["cpu"].available.value(), 2);

    let own = read(&kept(&node, Profile::Stelia, ApiVersion::V1Alpha2));
    let told = own.facts.unwrap();
    assert_eq!(own.profile, Profile::Stelia);
    assert_eq!(
        (&told.exclusive, &told.reserved, &told.shared),
        (&node.exclusive, &node.reserved, &node.shared)
    );
    assert_eq!(
        (&told.numa, &told.kubelet.alignment),
        (&node.numa, &node.kubelet.alignment)
    );
    assert_eq!(own.holders.len(), 2);
    let of_first = own.holders[0].cpus.as_ref();
    assert_eq!(of_first.map(ToString::to_string).as_deref(), Some("2-3"));
    assert_eq!((own.problem, own.manager.as_deref()), (None, Some("steliad")));
    assert_eq!(
        (own.state, own.summary),
        (None, None),
        "not by the daemon, but by the publisher"
    );

    // v1alpha1 has no attributes.
    let mut old = kept(&node, Profile::Koordinator, ApiVersion::V1Alpha1);
    old["metadata"]["annotations"][STATE] = json!("away");
    old["metadata"]["annotations"][SUMMARY] =
        json!(r#"{"version":"0.1.0","reason":"Ready","instances":{"isolated":2},"degraded":2,"waiting_too_long":0}"#);
    let old = read(&old);
    assert_eq!(
        (old.state.as_deref(), old.summary.map(|summary| summary.degraded)),
        (Some("away"), Some(2))
    );
    assert_eq!(old.profile, Profile::Koordinator);
}

#[test]
fn a_summary_that_cannot_be_read_is_a_problem_and_the_rest_is_read() {
    let with = |summary: &str| {
        let mut object = kept(&facts(), Profile::Nrt, ApiVersion::V1Alpha2);
        let attribute = json!({"name": SUMMARY, "value": summary});
        object["attributes"].as_array_mut().unwrap().push(attribute);
        read(&object)
    };
    for wrong in [
        "",
        "not json",
        "[]",
        "null",
        r#"["0.1.0","Ready"]"#,
        r#"{"version":"0.1.0","reason":"Ready","instances":{},"degraded":-1,"waiting_too_long":0}"#,
        r#"{"version":"0.1.0","reason":"Ready","instances":{},"degraded":0,"degraded":0,"waiting_too_long":0}"#,
        r#"{"version":"0.1.0","reason":"Ready","instances":{"isolated":0.5},"degraded":0,"waiting_too_long":0}"#,
        // What every publisher writes is missing.
        r#"{"version":"0.1.0","reason":"Ready","instances":{},"waiting_too_long":0}"#,
        r#"{"version":"0.1.0","reason":"Ready","degraded":0,"waiting_too_long":0}"#,
        r#"{"version":"0.1.0","instances":{},"degraded":0,"waiting_too_long":0}"#,
        r#"{"version":"0.1.0","reason":"Ready","instances":null,"degraded":0,"waiting_too_long":0}"#,
        r#"{"version":"0.1.0","reason":"Ready","instances":{},"degraded":0}"#,
        r#"{"reason":"Ready","instances":{},"degraded":0,"waiting_too_long":0}"#,
        // Which of the two counts holds is not known.
        r#"{"version":"0.1.0","reason":"Ready","instances":{"waiting":5,"waiting":0},"degraded":0,"waiting_too_long":0}"#,
        // Counts that cannot be.
        r#"{"version":"0.1.0","reason":"Ready","instances":{"waiting":2},"degraded":0,"waiting_too_long":3}"#,
        r#"{"version":"0.1.0","reason":"Ready","instances":{"isolated":2},"degraded":3,"waiting_too_long":0}"#,
    ] {
        let stored = with(wrong);
        assert!(stored.summary.is_none() && stored.summary_problem.is_some(), "{wrong}");
        assert_eq!((stored.problem, stored.zones.len()), (None, 2));
    }
    let newer = with(
        r#"{"version":"0.1.0","reason":"Ready","instances":{"resting":7},"degraded":0,"waiting_too_long":0,"more":{"a":1}}"#,
    );
    assert_eq!(
        (newer.summary.unwrap().instances["resting"], newer.summary_problem),
        (7, None)
    );
}

#[test]
fn containers_without_a_vm_are_told_by_the_profile_stelia_alone() {
    let mut node = facts();
    node.containers.insert(node.allocations[1].pod.clone());
    // Its CPUs are not known: it is not among the pods.
    node.containers
        .insert(PodUid::parse("00000000-21de-472d-817c-fa9d4306cb7d").unwrap());
    let of = |profile, version| {
        let stored = read(&kept(&node, profile, version));
        let holders = stored.holders.into_iter();
        holders.map(|holder| holder.is_container).collect::<Vec<_>>()
    };
    assert_eq!(of(Profile::Stelia, ApiVersion::V1Alpha2), [Some(false), Some(true)]);
    assert_eq!(of(Profile::Koordinator, ApiVersion::V1Alpha1), [None, None]);
    let object = kept(&node, Profile::Stelia, ApiVersion::V1Alpha2).to_string();
    assert!(object.contains(r#"\"containers\":[\"416de7c2"#), "{object}");
}

#[test]
fn a_description_is_read_whatever_version_it_is_asked_for_in() {
    let node = facts();
    let written = kept(&node, Profile::Koordinator, ApiVersion::V1Alpha1);
    let mut converted = written.clone();
    converted["apiVersion"] = json!("topology.node.k8s.io/v1alpha2");
    let attributes = kept(&node, Profile::Koordinator, ApiVersion::V1Alpha2);
    let read_back = Facts {
        topology: annotations::ranked(&node.topology),
        ..node
    };
    for object in [written, converted, attributes] {
        let stored = read(&object);
        assert_eq!(stored.facts.as_ref(), Some(&read_back), "{object}");
        assert_eq!((stored.profile, stored.zones.len()), (Profile::Koordinator, 2));
        assert_eq!(stored.holders[0].cpus, Some(cpus("2-3")));
    }
    // What koordlet writes is not what is written here: the amounts are left.
    let mut foreign = kept(&facts(), Profile::Koordinator, ApiVersion::V1Alpha1);
    foreign["metadata"]["annotations"][CPU_MANAGER_POLICY] = json!("{\"policy\": \"static\", \"more\": 1}");
    let stored = read(&foreign);
    assert_eq!(
        (stored.profile, stored.facts, stored.zones.len()),
        (Profile::Nrt, None, 2)
    );
    assert!(stored.problem.unwrap().contains(CPU_MANAGER_POLICY));
}

#[test]
fn where_steliad_chooses_the_allocator_answers_alike_from_either_profile() {
    let node = large();
    let read = |profile, version| read(&kept(&node, profile, version)).facts.unwrap();
    let whole = read(Profile::Koordinator, ApiVersion::V1Alpha1);
    let lean = read(Profile::Stelia, ApiVersion::V1Alpha2);
    let ask = |facts: &Facts| {
        let node = facts.allocator_node().unwrap();
        let request = |count| crate::allocator::AllocationRequest {
            cpus: Some(count),
            ..Default::default()
        };
        let requests = [1, 2, 7, 24, 100, 400].map(|count| crate::allocator::evaluate::EvaluateRequest {
            allocation: request(count),
            options: Default::default(),
        });
        crate::allocator::evaluate::evaluate(&node, &requests)
    };
    assert_eq!(ask(&whole), ask(&lean));
    assert!(ask(&lean)[0].is_ok());
}

#[test]
fn what_cannot_be_read_is_named() {
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut object = kept(&facts(), Profile::Stelia, ApiVersion::V1Alpha2);
        change(&mut object);
        match Stored::read(&object.to_string()) {
            Ok(stored) => stored.problem.unwrap_or_default(),
            Err(cause) => cause.to_string(),
        }
    };
    let set = |value: &'static str| {
        move |object: &mut Value| {
            let attributes = object["attributes"].as_array_mut().unwrap();
            attributes.last_mut().unwrap()["value"] = json!(value);
        }
    };
    assert!(wrong(&set("{}")).contains("missing field `v`"));
    assert!(wrong(&set(r#"{"v":2}"#)).contains("version 2"));
    let absurd = r#"{"v":1,"topology":"0x1000000000:0:0:0","policy":"static"}"#;
    assert!(wrong(&set(absurd)).contains("not a run of CPUs"));
    assert!(wrong(&|object| object["zones"][0]["name"] = json!("node-x")).contains("zones[0].name"));
    assert!(wrong(&|object| object["zones"][1]["name"] = json!("node-0")).contains("twice"));
    let resource = |object: &mut Value| object["zones"][0]["resources"][0]["capacity"] = json!("lots");
    assert!(wrong(&resource).contains("zones[0].resources[0].capacity"));
    assert!(wrong(&|object| object["metadata"]["name"] = json!("No/Node")).contains("No/Node"));
    assert!(wrong(&|object| object["zones"] = json!(7)).contains("not a NodeResourceTopology"));
    let many = |object: &mut Value| object["zones"] = vec![json!({"name": "node-0"}); MAX_ZONES + 1].into();
    assert!(wrong(&many).contains("zones"));
}

proptest! {
    /// Whoever writes the object, reading it ends, and never in a panic.
    #[test]
    fn any_bytes_in_place_of_any_value_are_read_or_refused(place in 0..400usize, with in ".{0,12}", seed in any::<u16>()) {
        let mut text = kept(&facts(), Profile::Stelia, ApiVersion::V1Alpha2).to_string();
        let at = (place * 7 + seed as usize) % text.len();
        let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        let end = (at + with.len()).min(text.len());
        let end = (end..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap();
        text.replace_range(at..end, &with);
        let _ = Stored::read(&text);
    }
}

#[test]
fn a_key_of_another_programs_next_version_does_not_make_its_annotations_unreadable() {
    let mut theirs = kept(&facts(), Profile::Koordinator, ApiVersion::V1Alpha1);
    let mut add = |name: &str, change: fn(&mut Value)| {
        let text = theirs["metadata"]["annotations"][name].as_str().unwrap();
        let mut value: Value = serde_json::from_str(text).unwrap();
        change(&mut value);
        theirs["metadata"]["annotations"][name] = json!(value.to_string());
    };
    add(POD_CPU_ALLOCS, |value| value[0]["newer"] = json!([1]));
    add(CPU_TOPOLOGY, |value| {
        value["newer"] = json!(true);
        value["detail"][0]["cluster"] = json!(0);
    });
    add(CPU_MANAGER_POLICY, |value| value["newer"] = json!({}));
    // What was written here is read strictly.
    assert!(read(&theirs).problem.unwrap().contains("unknown field"));
    theirs["metadata"]["labels"][MANAGED_BY.0] = json!("Koordinator");
    let stored = read(&theirs);
    assert_eq!(stored.manager.as_deref(), Some("Koordinator"));
    assert!(
        stored
            .problem
            .as_deref()
            .is_none_or(|problem| !problem.contains("unknown field")),
        "{:?}",
        stored.problem
    );
}
