//! Requests as HTTP has them. Nothing here is sent. Server-side apply is never forced.

use kube::core::Request as Builder;
use kube::core::params::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::request::Error;
use serde_json::Value;

use crate::decide::content::GROUP;

pub(crate) type PublisherRequest = http::Request<Vec<u8>>;
pub(crate) type Made = Result<PublisherRequest, Error>;

pub(crate) fn nodes() -> Builder {
    Builder::new("/api/v1/nodes")
}

pub(crate) fn pods(namespace: &str) -> Builder {
    Builder::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

pub(crate) fn events(namespace: &str) -> Builder {
    Builder::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
}

pub(crate) fn objects(version: &str) -> Builder {
    Builder::new(format!("/apis/{GROUP}/{version}/noderesourcetopologies"))
}

/// The group and version of RebindResources.
const REBINDS: &str = "isolation.stelia.io/v1alpha1";

pub(crate) fn rebinds() -> Builder {
    Builder::new(format!("/apis/{REBINDS}/rebindresources"))
}

pub(crate) fn merge_rebind_status(manager: &str, name: &str, body: &Value) -> Made {
    rebinds().patch_subresource("status", name, &PatchParams::apply(manager), &Patch::Merge(body))
}

pub(crate) fn get(of: &Builder, name: &str) -> Made {
    of.get(name, &GetParams::default())
}

pub(crate) fn apply(of: &Builder, manager: &str, name: &str, body: &Value) -> Made {
    of.patch(name, &PatchParams::apply(manager), &Patch::Apply(body))
}

pub(crate) fn merge(of: &Builder, manager: &str, name: &str, body: &Value) -> Made {
    of.patch(name, &PatchParams::apply(manager), &Patch::Merge(body))
}

/// Only the object with this UID.
pub(crate) fn delete_object(version: &str, name: &str, uid: &str) -> Made {
    let this = Preconditions {
        uid: Some(uid.to_owned()),
        ..Preconditions::default()
    };
    objects(version).delete(name, &DeleteParams::default().preconditions(this))
}

pub(crate) fn apply_pod_status(manager: &str, namespace: &str, name: &str, body: &Value) -> Made {
    pods(namespace).patch_subresource("status", name, &PatchParams::apply(manager), &Patch::Apply(body))
}

pub(crate) fn create_event(manager: &str, namespace: &str, body: &Value) -> Made {
    let by = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    events(namespace).create(&by, body.to_string().into_bytes())
}
