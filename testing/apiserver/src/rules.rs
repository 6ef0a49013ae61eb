//! What the API server checks of single kinds beside their schemas.

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::resources::{Resource, Rules};

/// Texts of an event that must be there, with how long they may be.
const EVENT_TEXTS: [(&str, usize); 4] = [
    ("reportingController", usize::MAX),
    ("reportingInstance", 128),
    ("action", 128),
    ("reason", 128),
];
const MAX_NOTE_BYTES: usize = 1024;
/// What of an event never changes; its series may.
const EVENT_FIXED: [&str; 9] = [
    "regarding",
    "related",
    "reason",
    "note",
    "type",
    "eventTime",
    "action",
    "reportingController",
    "reportingInstance",
];
/// What events had in an earlier API.
const EVENT_UNSET: [(&str, &str); 4] = [
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("deprecatedSource", "source"),
];

pub(crate) fn faults(rules: Rules, live: Option<&Value>, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        found.push("metadata.name: Required value: name or generateName is required".into());
    } else if !is_subdomain(name) {
        found.push(format!("metadata.name: Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"));
    }
    for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        for member in ["apiVersion", "kind", "name", "uid"] {
            if owner[member].as_str().is_none_or(str::is_empty) {
                found.push(format!(
                    "metadata.ownerReferences.{member}: Invalid value: \"\": must not be empty"
                ));
            }
        }
    }
    match rules {
        Rules::Event => found.extend(event(live, object)),
        Rules::Lease => {
            let seconds = &object["spec"]["leaseDurationSeconds"];
            if !seconds.is_null() && seconds.as_i64().is_none_or(|seconds| seconds <= 0) {
                found.push(format!(
                    "spec.leaseDurationSeconds: Invalid value: {seconds}: must be greater than 0"
                ));
            }
        }
        Rules::Core | Rules::Custom { .. } => {}
    }
    found
}

/// Rules of events.k8s.io/v1: `ValidateEventCreate` and `ValidateEventUpdate` (kubernetes, pkg/apis/core/validation/events.go).
fn event(live: Option<&Value>, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (name, longest) in EVENT_TEXTS {
        match object[name].as_str().unwrap_or_default() {
            "" => found.push(format!("{name}: Required value")),
            text if text.len() > longest => found.push(format!(
                "{name}: Invalid value: \"\": can have at most {longest} characters"
            )),
            _ => {}
        }
    }
    let controller = object["reportingController"].as_str().unwrap_or_default();
    if !controller.is_empty() && !is_qualified(controller) {
        found.push(format!(
            "reportingController: Invalid value: {controller:?}: name part must consist of alphanumeric characters"
        ));
    }
    if object["note"].as_str().is_some_and(|note| note.len() > MAX_NOTE_BYTES) {
        found.push(format!(
            "message: Invalid value: \"\": can have at most {MAX_NOTE_BYTES} characters"
        ));
    }
    // Another namespace than the event's is refused of events without eventTime alone.
    let about = object["regarding"]["namespace"].as_str().unwrap_or_default();
    let own = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if about.is_empty() && !["default", "kube-system"].contains(&own) {
        found.push("involvedObject.namespace: Invalid value: \"\": does not match event.namespace".into());
    }
    let series = &object["series"];
    if !series.is_null() && live.is_none_or(|live| live["series"] != *series) {
        if series["count"].as_u64().unwrap_or_default() < 2 {
            found.push("series.count: Invalid value: \"\": should be at least 2".into());
        }
        if !series["lastObservedTime"].is_string() {
            found.push("series.lastObservedTime: Required value".into());
        }
    }
    if object["eventTime"].as_str().is_none_or(str::is_empty) {
        found.push("eventTime: Required value".into());
    }
    let kind = object["type"].as_str().unwrap_or_default();
    if !["Normal", "Warning"].contains(&kind) {
        found.push(format!("type: Invalid value: \"\": has invalid value: {kind}"));
    }
    for (name, shown) in EVENT_UNSET.iter().filter(|(name, _)| !object[*name].is_null()) {
        let is = &object[*name];
        found.push(format!("{shown}: Invalid value: {is}: needs to be unset"));
    }
    if let Some(live) = live {
        let changed = EVENT_FIXED.iter().filter(|name| live[**name] != object[**name]);
        found.extend(changed.map(|name| format!("{name}: Invalid value: {}: field is immutable", object[*name])));
    }
    found
}

/// What of a custom resource raises its generation.
pub(crate) fn content(object: &Value) -> Value {
    let mut copy = object.clone();
    for name in ["metadata", "status"] {
        if let Some(map) = copy.as_object_mut() {
            map.remove(name);
        }
    }
    copy
}

/// A name with or without a subdomain before it: `stelia.io/steliad`.
fn is_qualified(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').unwrap_or(("prefix", text));
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    is_subdomain(prefix)
        && name.len() <= 63
        && name.chars().all(inner)
        && outer(name.chars().next())
        && outer(name.chars().last())
}

fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = label
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// A pod that a Binding gives to a node: `BindingREST` (kubernetes, pkg/registry/core/pod/storage).
pub(crate) fn bind(pods: &Resource, pod: &Value, binding: &Value, now: &str) -> Result<Value, Failure> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let refuse = |why: String| {
        let message = format!("Operation cannot be fulfilled on pods/binding \"{name}\": {why}");
        Failure::new(409, message).about(pods, name)
    };
    let Some(node) = binding["target"]["name"].as_str().filter(|node| !node.is_empty()) else {
        return Err(Failure::invalid(
            "Binding",
            name,
            &["target.name: Required value".into()],
        ));
    };
    for (member, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let text = |object: &Value| object["metadata"][member].as_str().unwrap_or_default().to_owned();
        let (wanted, has) = (text(binding), text(pod));
        if !wanted.is_empty() && wanted != has {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {has}");
            return Err(refuse(why));
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Err(refuse(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        )));
    }
    if let Some(assigned) = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
        return Err(refuse(format!("pod {name} is already assigned to node {assigned:?}")));
    }
    if pod["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        return Err(refuse(format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    let mut bound = pod.clone();
    bound["spec"]["nodeName"] = node.into();
    for (name, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
        bound["metadata"]["annotations"][name.as_str()] = value.clone();
    }
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    match bound["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(scheduled);
        }
        None => bound["status"]["conditions"] = json!([scheduled]),
    }
    Ok(bound)
}
