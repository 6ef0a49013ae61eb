//! Requests as HTTP has them. Nothing here is sent. Server-side apply is never forced.

use kube::core::Request as Builder;
use kube::core::params::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::request::Error;
use serde_json::Value;

use crate::decide::content::GROUP;

pub(crate) type PublisherRequest = http::Request<Vec<u8>>;

fn nodes() -> Builder {
    Builder::new("/api/v1/nodes")
}

fn pods(namespace: &str) -> Builder {
    Builder::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

fn events(namespace: &str) -> Builder {
    Builder::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
}

fn objects(version: &str) -> Builder {
    Builder::new(format!("/apis/{GROUP}/{version}/noderesourcetopologies"))
}

pub(crate) fn node_metadata(name: &str) -> Result<PublisherRequest, Error> {
    nodes().get_metadata(name, &GetParams::default())
}

pub(crate) fn node(name: &str) -> Result<PublisherRequest, Error> {
    nodes().get(name, &GetParams::default())
}

pub(crate) fn apply_node(manager: &str, name: &str, body: &Value) -> Result<PublisherRequest, Error> {
    nodes().patch(name, &PatchParams::apply(manager), &Patch::Apply(body))
}

pub(crate) fn merge_node(manager: &str, name: &str, body: &Value) -> Result<PublisherRequest, Error> {
    nodes().patch(name, &PatchParams::apply(manager), &Patch::Merge(body))
}

pub(crate) fn object(version: &str, name: &str) -> Result<PublisherRequest, Error> {
    objects(version).get(name, &GetParams::default())
}

pub(crate) fn apply_object(manager: &str, version: &str, name: &str, body: &Value) -> Result<PublisherRequest, Error> {
    objects(version).patch(name, &PatchParams::apply(manager), &Patch::Apply(body))
}

/// Only the object with this UID.
pub(crate) fn delete_object(version: &str, name: &str, uid: &str) -> Result<PublisherRequest, Error> {
    let this = Preconditions {
        uid: Some(uid.to_owned()),
        ..Preconditions::default()
    };
    objects(version).delete(name, &DeleteParams::default().preconditions(this))
}

pub(crate) fn pod(namespace: &str, name: &str) -> Result<PublisherRequest, Error> {
    pods(namespace).get(name, &GetParams::default())
}

pub(crate) fn apply_pod_status(
    manager: &str,
    namespace: &str,
    name: &str,
    body: &Value,
) -> Result<PublisherRequest, Error> {
    pods(namespace).patch_subresource("status", name, &PatchParams::apply(manager), &Patch::Apply(body))
}

pub(crate) fn create_event(manager: &str, namespace: &str, body: &Value) -> Result<PublisherRequest, Error> {
    let by = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    events(namespace).create(&by, body.to_string().into_bytes())
}

pub(crate) fn merge_event(manager: &str, namespace: &str, name: &str, body: &Value) -> Result<PublisherRequest, Error> {
    events(namespace).patch(name, &PatchParams::apply(manager), &Patch::Merge(body))
}
