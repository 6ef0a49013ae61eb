//! A pod's binding, reading a pod, and the condition that has it tried again.

use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Api, JSON, REQUEST_TIMEOUT, ServerFailure, escape};
use crate::reservations::Version;

/// Koordinator's annotation, which the runner reads by `--resource-status`.
pub(super) const STATUS: &str = "scheduling.koordinator.sh/resource-status";
/// The condition that is written so that kube-scheduler tries a pod again. It does so after any change of a waiting pod, and not after changes
/// of nodes' objects.
const RETRY: &str = "isolation.stelia.io/Retry";
const APPLY: &str = "application/apply-patch+yaml";
const MANAGER: &str = "stelia-placement";

/// A pod, as it is bound.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    /// The pod is bound only if it still has this version; 0: whatever its version.
    pub version: Version,
    pub node: &'a str,
    /// The annotation's value: the CPUs that the pod's runner must take.
    pub assigned_cpus: Option<&'a str>,
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", escape(namespace), escape(name))
}

impl Api {
    /// Binds a pod to a node.
    ///
    /// # Errors
    /// [`ServerFailure::Conflict`]: it is bound, it is another pod, or it has another version.
    pub async fn bind(&self, binding: &Binding<'_>) -> Result<(), ServerFailure> {
        let annotations: Map<String, Value> = binding
            .assigned_cpus
            .map(|cpus| (STATUS.to_owned(), Value::from(cpus)))
            .into_iter()
            .collect();
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "namespace": binding.namespace,
                "name": binding.name,
                "uid": binding.uid,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        });
        if binding.version != 0 {
            body["metadata"]["resourceVersion"] = binding.version.to_string().into();
        }
        // The API server, too, ends the request after so long: it would otherwise work on one that nobody waits for.
        let path = path(binding.namespace, binding.name);
        let path = format!("{path}/binding?timeout={}s", REQUEST_TIMEOUT.as_secs());
        self.call(Method::POST, &path, Some((JSON, &body))).await.map(drop)
    }

    /// The pod as it is now.
    ///
    /// # Errors
    /// [`ServerFailure::Missing`]: there is none of that name.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Value, ServerFailure> {
        self.call(Method::GET, &path(namespace, name), None).await
    }

    /// Has kube-scheduler try the pod again.
    ///
    /// # Errors
    /// [`ServerFailure::Conflict`]: it is another pod.
    pub async fn retry(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ServerFailure> {
        // New each time: what is unchanged is no change.
        let why = format!("a node has room for this pod, seen at {:.6}", Timestamp::now());
        let condition = json!({"type": RETRY, "status": "True", "reason": "RoomOnNode", "message": why});
        let body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": {"conditions": [condition]},
        });
        let path = format!("{}/status?fieldManager={MANAGER}&force=true", path(namespace, name));
        self.call(Method::PATCH, &path, Some((APPLY, &body))).await.map(drop)
    }
}
