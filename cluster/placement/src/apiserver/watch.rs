//! A list, and every change after it.
//!
//! Written by hand, not taken from kube-runtime: the objects are read in part from the text as it comes (a pod of 5 kB leaves 100
//! bytes), an object that cannot be read does not end the stream, and a new leader lists again.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use stelia_cpus::rate::Backoff;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Api, ServerFailure, escape};
use crate::reservations::Version;

/// Objects requested in one page, unless they are so large that the answer is too long.
const OBJECTS_PER_PAGE: usize = 500;
/// The server ends a watch after so long.
const WATCH_SECONDS: u64 = 290;
/// Limit of an event, in bytes: etcd accepts objects of 1.5 MiB.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Timeout of the beginning of an answer, and of the end of a watch beyond [`WATCH_SECONDS`].
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses after requests that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// What is watched.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// `/api/v1/pods`.
    pub path: &'static str,
    /// A field selector; empty: all.
    pub fields: &'static str,
}

/// Receives the events.
pub trait Follower: Send + Sync {
    /// An object was added or changed. It may be anything.
    fn changed(&self, object: &RawValue);

    /// An object was deleted, or is not selected any more.
    fn gone(&self, _object: &RawValue) {}

    /// The objects of a list follow, as changed ones.
    fn list_begins(&self) {}

    /// The list is complete: objects that were not in it are gone. `term`: the number in `terms` for which it was requested.
    fn list_ends(&self, _version: Version, _term: u64) {}

    /// A request failed; it is tried again.
    fn failed(&self, failure: &ServerFailure);
}

#[derive(Deserialize)]
struct Page<'a> {
    metadata: Metadata,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
    r#continue: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// The cluster's data is older than what was read before, as when a backup of etcd is restored: nothing that was read is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path}: the list has version {listed}, and version {newest} was seen before: the cluster's data went back in time"
)]
pub struct WentBack {
    path: &'static str,
    listed: Version,
    newest: Version,
}

/// Does not end by itself. Lists again each time the number in `terms` changes, whenever the watch cannot be continued, and after a watch that told nothing for
/// its whole time: the API server sends a bookmark a minute, but nothing at all if the watch begins at a version that is yet to come.
///
/// # Errors
/// The cluster's data went back in time.
pub async fn follow(
    api: &Api,
    source: Source,
    follower: Arc<dyn Follower>,
    mut terms: watch::Receiver<u64>,
) -> Result<(), WentBack> {
    let mut failures = 0;
    let (mut version, mut newest) = (String::new(), 0);
    loop {
        let term = *terms.borrow_and_update();
        newest = parse_version(&version).max(newest);
        follower.list_begins();
        version = match list(api, source, &*follower).await {
            Ok(version) => version,
            Err(failure) => {
                back_off(&failure, &mut failures, &*follower).await;
                continue;
            }
        };
        failures = 0;
        let listed = parse_version(&version);
        if listed < newest {
            let path = source.path;
            return Err(WentBack { path, listed, newest });
        }
        follower.list_ends(listed, term);
        let mut heard = Instant::now();
        loop {
            let ended = tokio::select! {
                biased;
                changed = terms.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return Ok(()),
                },
                ended = watch_from(api, source, &mut version, &mut heard, &*follower) => ended,
            };
            match ended {
                Ok(()) if heard.elapsed() >= Duration::from_secs(WATCH_SECONDS) => break,
                Ok(()) => failures = 0,
                Err(ServerFailure::Expired(_)) => break,
                Err(failure) => back_off(&failure, &mut failures, &*follower).await,
            }
        }
    }
}

/// Pauses, longer after each failure and at least as long as the server asks for.
async fn back_off(failure: &ServerFailure, failures: &mut u32, follower: &dyn Follower) {
    follower.failed(failure);
    let retry_after = failure.retry_after().unwrap_or_default();
    tokio::time::sleep(retry_after.max(BACKOFF.pause(*failures))).await;
    *failures = failures.saturating_add(1);
}

fn parse_version(version: &str) -> Version {
    version.parse().unwrap_or(0)
}

async fn list(api: &Api, source: Source, follower: &dyn Follower) -> Result<String, ServerFailure> {
    let (mut next, mut limit) = (String::new(), OBJECTS_PER_PAGE);
    loop {
        let mut path = format!("{}?limit={limit}", source.path);
        for (name, value) in [("fieldSelector", source.fields), ("continue", &next)] {
            if !value.is_empty() {
                path = format!("{path}&{name}={}", escape(value));
            }
        }
        let text = match api.text(RESPONSE_TIMEOUT, Method::GET, &path, None).await {
            Err(ServerFailure::TooLong(_)) if limit > 1 => {
                limit /= 2;
                continue;
            }
            answer => answer?,
        };
        let page: Page<'_> = serde_json::from_slice(&text).map_err(ServerFailure::unanswered)?;
        page.items.into_iter().for_each(|object| follower.changed(object));
        // One large object makes a few pages short, not all that follow.
        limit = (limit * 2).min(OBJECTS_PER_PAGE);
        if page.metadata.r#continue.is_empty() {
            return Ok(page.metadata.resource_version);
        }
        next = page.metadata.r#continue;
    }
}

/// Runs until the server ends it. `version` is that of the last event, `heard` when it came.
async fn watch_from(
    api: &Api,
    source: Source,
    version: &mut String,
    heard: &mut Instant,
    follower: &dyn Follower,
) -> Result<(), ServerFailure> {
    let mut path = format!(
        "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
        source.path,
        escape(version)
    );
    if !source.fields.is_empty() {
        path = format!("{path}&fieldSelector={}", escape(source.fields));
    }
    let response = api.send(Method::GET, &path, None);
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, response).await;
    let response = response.map_err(|_| ServerFailure::timed_out(RESPONSE_TIMEOUT))??;
    let mut body = response.into_body();
    let mut partial_line = Vec::new();
    let end = Instant::now() + Duration::from_secs(WATCH_SECONDS) + RESPONSE_TIMEOUT;
    loop {
        // The timeout ends a connection that broke without being closed.
        let frame = tokio::time::timeout_at(end, body.frame()).await;
        let frame = frame.map_err(|_| ServerFailure::timed_out(RESPONSE_TIMEOUT))?;
        let Some(frame) = frame else { return Ok(()) };
        let Ok(data) = frame.map_err(ServerFailure::unanswered)?.into_data() else {
            continue;
        };
        let mut rest = &data[..];
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(at);
            *heard = Instant::now();
            if partial_line.is_empty() {
                handle_line(line, version, follower)?
            } else {
                partial_line.extend_from_slice(line);
                handle_line(&partial_line, version, follower)?;
                partial_line.clear();
            }
            rest = after.get(1..).unwrap_or_default();
        }
        partial_line.extend_from_slice(rest);
        if partial_line.len() > MAX_EVENT_BYTES {
            let cause = format!("{}: an event of more than {MAX_EVENT_BYTES} bytes", source.path);
            return Err(ServerFailure::unanswered(cause));
        }
    }
}

fn handle_line(line: &[u8], version: &mut String, follower: &dyn Follower) -> Result<(), ServerFailure> {
    if line.trim_ascii().is_empty() {
        return Ok(());
    }
    let event: Event<'_> = serde_json::from_slice(line).map_err(ServerFailure::unanswered)?;
    match event.r#type {
        "ADDED" | "MODIFIED" => follower.changed(event.object),
        "DELETED" => follower.gone(event.object),
        "BOOKMARK" => {}
        _ => {
            let status: Status = serde_json::from_str(event.object.get()).unwrap_or(Status { code: 0 });
            return Err(ServerFailure::of(status.code, None, event.object.get().as_bytes()));
        }
    }
    let marked = serde_json::from_str(event.object.get()).map(|mark: Bookmark| mark.metadata.resource_version);
    if let Some(newer) = marked.ok().filter(|newer| !newer.is_empty()) {
        *version = newer;
    }
    Ok(())
}
