//! What each request does to the store.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};
use hyper::body::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::binding::bind;
use crate::failure::Failure;
use crate::lists;
use crate::query::Query;
use crate::resources::{Resource, Target};
use crate::server::{Server, State};
use crate::store::{Key, Stored};
use crate::watch::Watch;
use crate::write::Write;

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

pub(crate) enum Reply {
    Object(StatusCode, Value),
    Text(Bytes),
    /// As of a resource that is not there.
    NoSuchPath,
    Watch(Watch),
}

/// A resource in one of its versions.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) resource: Arc<Resource>,
    pub(crate) version: String,
}

impl Served {
    pub(crate) fn api_version(&self) -> String {
        self.resource.api_version(&self.version)
    }

    /// An object as this version names itself, whichever it was written in; its members are those that were written.
    pub(crate) fn object(&self, stored: &Stored) -> Value {
        let mut object = stored.value();
        object["apiVersion"] = self.api_version().into();
        object
    }

    /// The same as text.
    pub(crate) fn text(&self, stored: &Stored) -> Bytes {
        let begins = format!("{{\"apiVersion\":\"{}\",", self.api_version());
        if stored.text.starts_with(begins.as_bytes()) {
            stored.text.clone()
        } else {
            Bytes::from(self.object(stored).to_string())
        }
    }
}

/// A request, whole.
pub(crate) struct ApiRequest<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) target: &'a Target,
    pub(crate) query: &'a Query,
    pub(crate) verb: &'static str,
    pub(crate) body: &'a Bytes,
}

impl ApiRequest<'_> {
    fn header(&self, name: header::HeaderName) -> &str {
        let value = self.parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }
}

impl Server {
    pub(crate) fn serve(&self, request: &ApiRequest<'_>) -> Result<Reply, Failure> {
        let (target, verb) = (request.target, request.verb);
        let mut state = self.state();
        let found = state.resources.iter().find(|one| {
            one.group == target.group && one.plural == target.plural && one.versions.contains(&target.version.as_str())
        });
        let Some(resource) = found.cloned() else {
            return Ok(Reply::NoSuchPath);
        };
        let placed = resource.namespaced != target.namespace.is_empty();
        let all = target.name.is_empty() && ["list", "watch"].contains(&verb);
        let subresource = match target.subresource.as_str() {
            "" => true,
            "status" => resource.has_status(),
            "binding" => resource.plural == "pods" && verb == "create",
            _ => false,
        };
        if !(placed || all) || !subresource {
            return Ok(Reply::NoSuchPath);
        }
        let served = Served {
            resource,
            version: target.version.clone(),
        };
        let key = Key {
            resource: served.resource.id.clone(),
            namespace: target.namespace.clone(),
            name: target.name.clone(),
        };
        match verb {
            // As a server without WatchList: the client lists, and then watches.
            "watch" if request.query.is("sendInitialEvents") => {
                let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch";
                Err(Failure::new(422, message))
            }
            "watch" => Watch::new(&state, served, target, request.query).map(Reply::Watch),
            "list" => lists::list(&state, &served, target, request.query).map(Reply::Text),
            "get" => match state.store.get(&key) {
                Some(stored) if request.header(header::ACCEPT).contains("as=PartialObjectMetadata;") => {
                    let metadata = &served.object(stored)["metadata"];
                    let kind = "PartialObjectMetadata";
                    let partial = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                    Ok(Reply::Object(StatusCode::OK, partial))
                }
                Some(stored) => Ok(Reply::Text(served.text(stored))),
                None => Err(Failure::not_found(&served.resource, &target.name)),
            },
            "create" | "update" | "patch" => {
                let reply = self.change(&mut state, &served, request, key);
                self.tell(&state);
                reply
            }
            "delete" => {
                let reply = delete(&mut state, &served, &key, request.body);
                self.tell(&state);
                reply
            }
            _ => {
                let message = "the server does not allow this method on the requested resource";
                Err(Failure::new(405, message))
            }
        }
    }

    fn change(
        &self,
        state: &mut State,
        served: &Served,
        request: &ApiRequest<'_>,
        mut key: Key,
    ) -> Result<Reply, Failure> {
        let now = Timestamp::now().to_string();
        let mut parts = request.header(header::CONTENT_TYPE).split(';');
        let kind = parts.next().unwrap_or_default();
        let object = parsed(request.body)?;
        let target = request.target;
        let write = Write {
            resource: &served.resource,
            target,
            now: &now,
        };
        let whole = target.subresource.is_empty();
        let live = state.store.get(&key).map(|stored| served.object(stored));
        let missing = || Failure::not_found(&served.resource, &target.name);
        let (code, new) = match request.parts.method {
            Method::POST if target.subresource == "binding" => {
                let pod = bind(&served.resource, &live.ok_or_else(missing)?, &object, &now)?;
                state.store.put(key, pod);
                return Ok(Reply::Object(StatusCode::CREATED, success()));
            }
            Method::POST => {
                key.name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if state.store.get(&key).is_some() {
                    return Err(Failure::exists(&served.resource, &key.name));
                }
                let created = write.create(object, &state.uid())?;
                (StatusCode::CREATED, Some(created))
            }
            Method::PUT if whole => {
                let live = live.as_ref().ok_or_else(missing)?;
                (StatusCode::OK, write.replace(live, object)?)
            }
            _ if kind == APPLY => {
                let code = match live {
                    None if !whole => return Err(missing()),
                    None => StatusCode::CREATED,
                    Some(_) => StatusCode::OK,
                };
                let manager = request.query.get("fieldManager");
                (code, write.apply(live.as_ref(), object, manager, &state.uid())?)
            }
            _ if kind == MERGE => {
                let live = live.as_ref().ok_or_else(missing)?;
                (StatusCode::OK, write.patch(live, &object)?)
            }
            _ => {
                let message = "the body of the request was in an unknown format";
                return Err(Failure::new(415, message));
            }
        };
        let object = match new {
            Some(new) => state.store.put(key, new),
            None => live.unwrap_or_default(),
        };
        Ok(Reply::Object(code, object))
    }
}

fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
}

fn parsed(body: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::new(400, format!("the body cannot be read: {error}")))
}

fn delete(state: &mut State, served: &Served, key: &Key, body: &Bytes) -> Result<Reply, Failure> {
    let Some(live) = state.store.get(key).map(Stored::value) else {
        return Err(Failure::not_found(&served.resource, &key.name));
    };
    let options = if body.is_empty() { Value::Null } else { parsed(body)? };
    let (wanted, has) = (&options["preconditions"]["uid"], &live["metadata"]["uid"]);
    if !wanted.is_null() && wanted != has {
        let why = format!("the UID in the precondition ({wanted}) does not match the UID in record ({has})");
        return Err(Failure::conflict(&served.resource, &key.name, &why));
    }
    state.store.remove(key);
    Ok(Reply::Object(StatusCode::OK, success()))
}
