//! What should stand at the API server.

use std::time::Duration;

use serde_json::Value;

use super::reconciler::digest;
use super::{Freshness, ReconcilerState, content};

impl ReconcilerState {
    fn freshness(&self, now: Duration) -> Freshness {
        match (self.is_past_grace(now), self.daemon_lives, &self.told) {
            (true, false, _) => Freshness::Away,
            (true, true, _) => Freshness::Unusable,
            (false, _, Some(told)) if told.object.is_none() => Freshness::Unusable,
            // Not known yet: what stands there stays.
            (false, ..) => Freshness::Current,
        }
    }

    /// The object that stands has to be marked, and is not known.
    pub(super) fn is_recall_wanted(&self, now: Duration) -> bool {
        !self.recall.done && self.described.is_none() && self.freshness(now) != Freshness::Current
    }

    pub(super) fn wanted_object(&self, now: Duration) -> Option<Value> {
        let described = self.described.as_ref().and_then(|told| told.object.as_ref());
        let owner = self.node.uid().map(|uid| (self.options.node.as_str(), uid));
        let known = described.or(self.recall.object.as_ref())?;
        let summary = self.told.as_ref().and_then(|told| told.summary.as_ref());
        Some(content::object(known, self.freshness(now), owner, summary))
    }

    /// Whether VMs can be admitted; `None` while that is not known.
    fn is_ready(&self, now: Duration) -> Option<bool> {
        if self.is_past_grace(now) {
            Some(false)
        } else {
            Some(self.told.as_ref()?.ready.status)
        }
    }

    pub(super) fn wanted_label(&self, now: Duration) -> Option<Value> {
        let ready = self.is_ready(now).filter(|_| self.options.ready_label)?;
        Some(content::label(&self.options.node, self.node.uid(), Some(ready)))
    }

    /// What is wanted, anew: of a reading, of the grace that has passed, of the Node's UID.
    pub(super) fn want(&mut self, now: Duration) {
        let key = (self.freshness(now), self.is_ready(now));
        if self.wanted_for == Some(key) {
            return;
        }
        let of = |body: Option<Value>| body.map(|body| digest(body.to_string().as_bytes()));
        let (object, label) = (of(self.wanted_object(now)), of(self.wanted_label(now)));
        self.object.want(object, now);
        self.label.want(label, now);
        self.taint.want(self.is_ready(now) == Some(true));
        self.wanted_for = Some(key);
    }
}
