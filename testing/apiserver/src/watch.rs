//! Watches: what changed since a version, in order, as it changes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::{Stream, stream};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use serde_json::json;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::query::{Query, Selector};
use crate::requests::Served;
use crate::resources::Target;
use crate::server::{Server, State};
use crate::store::{Change, Happened, Stored};

/// How often a watch without changes gets a bookmark with the version.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) struct Watch {
    served: Served,
    /// `None`: of all namespaces.
    namespace: Option<String>,
    selector: Selector,
    /// What has been seen.
    revision: u64,
    waiting: VecDeque<Bytes>,
    bookmarks: bool,
    end: Option<Instant>,
    ended: bool,
}

impl Watch {
    pub(crate) fn new(state: &State, served: Served, target: &Target, query: &Query) -> Result<Self, Failure> {
        let mut selector = query.selector()?;
        if !target.name.is_empty() {
            selector = Selector::parse(&format!("metadata.name={}", target.name))?;
        }
        let asked = query.number("resourceVersion")?;
        let seconds = query.number("timeoutSeconds")?;
        let mut watch = Self {
            served,
            namespace: (!target.namespace.is_empty()).then(|| target.namespace.clone()),
            selector,
            revision: asked,
            waiting: VecDeque::new(),
            bookmarks: query.is("allowWatchBookmarks"),
            end: (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds)),
            ended: false,
        };
        if asked == 0 {
            watch.revision = state.store.revision;
            let listed = state.store.list(&watch.served.resource.id, watch.namespace.as_deref());
            let added = listed.filter(|(_, stored)| watch.takes(stored));
            let added = added.map(|(_, stored)| line("ADDED", &watch.served.text(stored)));
            let added: Vec<Bytes> = added.collect();
            watch.waiting.extend(added);
        }
        Ok(watch)
    }

    fn takes(&self, stored: &Stored) -> bool {
        self.selector.takes_all() || self.selector.takes(&self.served.object(stored))
    }

    fn bookmark(&self) -> Bytes {
        let object = json!({
            "kind": self.served.resource.kind, "apiVersion": self.served.api_version(),
            "metadata": {"resourceVersion": self.revision.to_string(), "creationTimestamp": null},
        });
        line("BOOKMARK", object.to_string().as_bytes())
    }

    /// What a change is to somebody who sees only what is selected.
    fn event(&self, change: &Change) -> Option<Bytes> {
        let namespace = self.namespace.as_ref();
        if namespace.is_some_and(|namespace| *namespace != change.key.namespace) {
            return None;
        }
        let before = change.before.as_ref().is_some_and(|before| self.takes(before));
        let now = self.takes(&change.now);
        let kind = match (change.happened, before, now) {
            (Happened::Deleted, true, _) | (Happened::Modified, true, false) => "DELETED",
            (Happened::Added | Happened::Modified, false, true) => "ADDED",
            (Happened::Modified, true, true) => "MODIFIED",
            _ => return None,
        };
        Some(line(kind, &self.served.text(&change.now)))
    }

    fn catch_up(&mut self, state: &State) {
        if state.faults.is_down() {
            self.ended = true;
            return;
        }
        if state.store.forgotten > self.revision {
            let failure = Failure::expired(self.revision, state.store.forgotten);
            let error = line("ERROR", failure.body().to_string().as_bytes());
            self.waiting.push_back(error);
            self.ended = true;
            return;
        }
        let id = self.served.resource.id.clone();
        let changes = state.store.since(self.revision, &id);
        let events: Vec<Bytes> = changes.filter_map(|change| self.event(change)).collect();
        self.waiting.extend(events);
        self.revision = self.revision.max(state.store.revision);
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut text = format!("{{\"type\":\"{kind}\",\"object\":").into_bytes();
    text.extend_from_slice(object);
    text.extend_from_slice(b"}\n");
    Bytes::from(text)
}

pub(crate) fn body(server: Server, watch: Watch) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    let receiver = server.inner.revision.subscribe();
    StreamBody::new(stream::unfold(
        (server, watch, receiver),
        |(server, mut watch, mut receiver)| async move {
            loop {
                if let Some(text) = watch.waiting.pop_front() {
                    return Some((Ok(Frame::data(text)), (server, watch, receiver)));
                }
                if watch.ended {
                    return None;
                }
                receiver.borrow_and_update();
                watch.catch_up(&server.state());
                if !watch.waiting.is_empty() || watch.ended {
                    continue;
                }
                let far = Instant::now() + Duration::from_secs(365 * 86_400);
                tokio::select! {
                    changed = receiver.changed() => watch.ended |= changed.is_err(),
                    () = tokio::time::sleep_until(watch.end.unwrap_or(far)) => watch.ended = true,
                    () = tokio::time::sleep(BOOKMARK_INTERVAL), if watch.bookmarks => {
                        let bookmark = watch.bookmark();
                        watch.waiting.push_back(bookmark);
                    }
                }
            }
        },
    ))
}
