//! A pod's binding: `BindingREST` (kubernetes, pkg/registry/core/pod/storage).

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::resources::Resource;

/// The pod that a Binding gives to a node.
pub(crate) fn bind(pods: &Resource, pod: &Value, binding: &Value, now: &str) -> Result<Value, Failure> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let refuse = |why: String| {
        let message = format!("Operation cannot be fulfilled on pods/binding \"{name}\": {why}");
        Failure::new(409, message).about(pods, name)
    };
    let Some(node) = binding["target"]["name"].as_str().filter(|node| !node.is_empty()) else {
        return Err(Failure::invalid(pods, name, "target.name", "Required value"));
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
