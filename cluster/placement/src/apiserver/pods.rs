//! A pod's binding, reading a pod, and the condition that has it tried again.

use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The annotation that the runner reads by `--resource-status`.
pub(super) use stelia_koordinator::allocator::koordinator::RESOURCE_STATUS as STATUS;

use super::{Api, JSON, REQUEST_TIMEOUT, ServerFailure, escape};
use crate::reservations::{NodeName, Version};

/// The condition that is written so that kube-scheduler tries a pod again. It does so after any change of a waiting pod, and not after changes
/// of nodes' objects.
const RETRY: &str = "isolation.stelia.io/Retry";
const APPLY: &str = "application/apply-patch+yaml";
const MANAGER: &str = "stelia-placement";

/// A pod and the node that it is to be bound to; kube-scheduler's `ExtenderBindingArgs`.
#[derive(Debug, Clone, Deserialize)]
pub struct ToBind {
    #[serde(rename = "PodNamespace")]
    pub namespace: String,
    #[serde(rename = "PodName")]
    pub name: String,
    #[serde(rename = "PodUID")]
    pub uid: String,
    #[serde(rename = "Node")]
    pub node: NodeName,
}

impl ToBind {
    /// `namespace/name`.
    pub(crate) fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", escape(namespace), escape(name))
}

impl Api {
    /// Binds a pod to a node, only if it still has this version; 0: whatever its version. `assigned_cpus`: the annotation's value, the CPUs that the pod's
    /// runner must take.
    ///
    /// # Errors
    /// [`ServerFailure::Conflict`]: it is bound, it is another pod, it has another version, or what etcd did is not known.
    pub async fn bind(&self, to: &ToBind, version: Version, assigned_cpus: Option<&str>) -> Result<(), ServerFailure> {
        let status = assigned_cpus.map(|cpus| (STATUS.to_owned(), Value::from(cpus)));
        let annotations: Map<String, Value> = status.into_iter().collect();
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": to.namespace, "name": to.name, "uid": to.uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": to.node},
        });
        if version != 0 {
            body["metadata"]["resourceVersion"] = version.to_string().into();
        }
        // The API server, too, ends the request after so long: it would otherwise work on one that nobody waits for.
        let (pod, seconds) = (path(&to.namespace, &to.name), REQUEST_TIMEOUT.as_secs());
        let path = format!("{pod}/binding?timeout={seconds}s");
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
