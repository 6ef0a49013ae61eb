//! The taint that keeps pods off a node until VMs can be admitted: taken off once, and put back when steliad is removed. Taints are one
//! list that nobody owns a part of, so they are read and written with the Node's version (`metadata.resourceVersion`).

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::ApiFailure;
use crate::backoff::{Random, RetryPause};
use crate::decide::content::REMOVED_TAINTS;
use crate::intervals::REAPPLY_INTERVAL;

/// The fields of a Node that are read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct NodeView {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: NodeSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct NodeSpec {
    #[serde(default)]
    pub taints: Vec<Value>,
}

/// The merge patch that takes off the taints with this key and remembers them; `None` if there are none.
pub fn without(node: &NodeView, key: &str) -> Option<Value> {
    let (taken, stay): (Vec<&Value>, Vec<&Value>) = node.spec.taints.iter().partition(|taint| taint["key"] == key);
    if taken.is_empty() {
        return None;
    }
    let mut remembered = removed(node);
    for taint in taken {
        let mut taint = taint.clone();
        if let Value::Object(fields) = &mut taint {
            fields.remove("timeAdded");
        }
        if !remembered.contains(&taint) {
            remembered.push(taint);
        }
    }
    Some(patch(node, json!(stay), Value::Array(remembered).to_string().into()))
}

/// The merge patch that puts back what was taken off; `None` if nothing was.
pub fn with_removed(node: &NodeView) -> Option<Value> {
    remembered(node)?;
    let mut taints = node.spec.taints.clone();
    for taint in removed(node) {
        let same = |one: &Value| one["key"] == taint["key"] && one["effect"] == taint["effect"];
        if !taints.iter().any(same) {
            taints.push(taint);
        }
    }
    Some(patch(node, json!(taints), Value::Null))
}

fn remembered(node: &NodeView) -> Option<&String> {
    node.metadata.annotations.as_ref()?.get(REMOVED_TAINTS)
}

/// What the annotation remembers; nothing if somebody wrote something else there.
fn removed(node: &NodeView) -> Vec<Value> {
    let taints = remembered(node).and_then(|text| serde_json::from_str(text).ok());
    taints.unwrap_or_default()
}

fn patch(node: &NodeView, taints: Value, remembered: Value) -> Value {
    json!({
        "metadata": {
            "uid": node.metadata.uid.as_deref().unwrap_or_default(),
            "resourceVersion": node.metadata.resource_version.as_deref().unwrap_or_default(),
            "annotations": {REMOVED_TAINTS: remembered},
        },
        "spec": {"taints": taints},
    })
}

/// Whether and when the taint is checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taint {
    /// VMs can be admitted.
    ready: bool,
    /// It is not there, as far as is known.
    is_off: bool,
    /// What is sent next, of the Node just read.
    patch: Option<Value>,
    rest: RetryPause,
}

/// What is due for the taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaintTask {
    ReadNode,
    TakeOff,
}

impl Taint {
    pub(crate) fn want(&mut self, ready: bool) {
        self.is_off &= ready == self.ready;
        self.ready = ready;
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.ready && !self.is_off
    }

    pub(crate) fn due(&self) -> Option<(Duration, TaintTask)> {
        let task = match self.patch {
            Some(_) => TaintTask::TakeOff,
            None => TaintTask::ReadNode,
        };
        let waits = self.is_off || self.rest.failures() > 0;
        let at = if waits { self.rest.until() } else { Duration::ZERO };
        self.ready.then_some((at, task))
    }

    pub(crate) fn patch(&self) -> Option<&Value> {
        self.patch.as_ref()
    }

    pub(crate) fn node_read(&mut self, node: &NodeView, key: &str, now: Duration, random: &mut Random) {
        self.rest.succeeded();
        self.patch = without(node, key);
        if self.patch.is_none() {
            self.off(now, random);
        }
    }

    pub(crate) fn off(&mut self, now: Duration, random: &mut Random) {
        self.patch = None;
        self.is_off = true;
        self.rest.succeeded_until(now + random.around(REAPPLY_INTERVAL));
    }

    /// No answer: the Node is read again before anything is written.
    pub(crate) fn interrupted(&mut self) {
        self.patch = None;
    }

    pub(crate) fn failed(&mut self, failure: &ApiFailure, now: Duration, random: &mut Random) {
        self.patch = None;
        self.rest.failed(now, failure, random);
    }
}
