//! What each request does to the store.

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::lists;
use crate::query::Query;
use crate::resources::{Resource, Rules, Target};
use crate::rules;
use crate::schema::Schema;
use crate::server::{Server, State};
use crate::store::{Key, Stored};
use crate::watch::Watch;
use crate::write::Write;

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const DEFINITIONS: &str = "customresourcedefinitions";

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
    pub(crate) fn schema(&self) -> &Schema {
        self.resource.versions.get(&self.version).unwrap_or(&crate::schema::ANY)
    }

    pub(crate) fn api_version(&self) -> String {
        self.resource.api_version(&self.version)
    }

    /// An object as this version has it, whichever it was written in.
    pub(crate) fn object(&self, stored: &Stored) -> Value {
        let mut object = stored.value();
        let version = self.api_version();
        if object["apiVersion"] != version {
            object["apiVersion"] = version.into();
            self.schema().prune(&mut object);
        }
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

impl Server {
    pub(crate) fn serve(&self, api_request: &ApiRequest<'_>) -> Result<Reply, Failure> {
        let ApiRequest {
            parts,
            target,
            query,
            verb,
            body,
        } = *api_request;
        let mut state = self.state();
        let found = state.resources.iter().find(|one| {
            one.group == target.group && one.plural == target.plural && one.versions.contains_key(&target.version)
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
        if !subresource && matches!(resource.rules, Rules::Custom { .. }) {
            return Err(Failure::not_found(&resource, &target.name));
        }
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
            "watch" => Watch::new(&state, served, target, query).map(Reply::Watch),
            "list" => lists::list(&state, &served, target, query).map(Reply::Text),
            "get" => match state.store.get(&key) {
                Some(stored) if wants_metadata(parts) => {
                    let metadata = &served.object(stored)["metadata"];
                    let kind = "PartialObjectMetadata";
                    let partial = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                    Ok(Reply::Object(StatusCode::OK, partial))
                }
                Some(stored) => Ok(Reply::Text(served.text(stored))),
                None => Err(Failure::not_found(&served.resource, &target.name)),
            },
            "create" | "update" | "patch" => {
                let reply = self.change(&mut state, &served, api_request, key);
                self.tell(&state);
                reply
            }
            "delete" => {
                let reply = delete(&mut state, &served, &key, body, &self.now());
                self.tell(&state);
                reply
            }
            _ => Err(Failure::new(
                405,
                "the server does not allow this method on the requested resource",
            )),
        }
    }

    fn change(
        &self,
        state: &mut State,
        served: &Served,
        api_request: &ApiRequest<'_>,
        mut key: Key,
    ) -> Result<Reply, Failure> {
        let ApiRequest {
            parts,
            target,
            query,
            body,
            ..
        } = *api_request;
        let now = self.now();
        let text = |name: header::HeaderName| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let kind = text(header::CONTENT_TYPE)
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        let agent = text(header::USER_AGENT).split('/').next().unwrap_or_default();
        let manager = match (query.get("fieldManager"), kind.as_str()) {
            ("", APPLY) => "",
            ("", _) if agent.is_empty() => "unknown",
            ("", _) => agent,
            (manager, _) => manager,
        };
        let mut object = parsed(body)?;
        let write = Write {
            resource: &served.resource,
            schema: served.schema(),
            target,
            manager,
            strict: query.get("fieldValidation") == "Strict",
            now: &now,
        };
        let live = state.store.get(&key).map(|stored| served.object(stored));
        let missing = || Failure::not_found(&served.resource, &target.name);
        let (code, new) = match parts.method {
            Method::POST if target.subresource == "binding" => {
                let pod = rules::bind(&served.resource, &live.ok_or_else(missing)?, &object, &now)?;
                if query.get("dryRun").is_empty() {
                    state.store.put(key, pod);
                }
                let done =
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
                return Ok(Reply::Object(StatusCode::CREATED, done));
            }
            Method::POST => {
                key.name = named(state, &mut object);
                if state.store.get(&key).is_some() {
                    return Err(Failure::exists(&served.resource, &key.name));
                }
                let created = write.create(object, &state.uid())?;
                (StatusCode::CREATED, Some(created))
            }
            Method::PUT => (
                StatusCode::OK,
                write.replace(live.as_ref().ok_or_else(missing)?, object)?,
            ),
            _ if kind == APPLY => {
                if live.is_none() && !target.subresource.is_empty() {
                    return Err(missing());
                }
                let code = match live {
                    Some(_) => StatusCode::OK,
                    None => StatusCode::CREATED,
                };
                (
                    code,
                    write.apply(live.as_ref(), object, query.is("force"), &state.uid())?,
                )
            }
            _ if kind == MERGE => (
                StatusCode::OK,
                write.patch(live.as_ref().ok_or_else(missing)?, &object)?,
            ),
            _ => {
                let message = format!(
                    "the body of the request was in an unknown format - accepted media types include: \
                     application/json-patch+json, {MERGE}, {APPLY}"
                );
                return Err(Failure::new(415, message));
            }
        };
        let Some(mut new) = new else {
            return Ok(Reply::Object(code, live.unwrap_or_default()));
        };
        if !query.get("dryRun").is_empty() {
            return Ok(Reply::Object(code, new));
        }
        if served.resource.plural == DEFINITIONS {
            let refused = |fault: String| Failure::invalid(&served.resource.kind_shown(), &key.name, &[fault]);
            state.define(&new).map_err(refused)?;
            new["status"] =
                json!({"conditions": [{"type": "Established", "status": "True", "reason": "InitialNamesAccepted"}]});
        }
        let ending = !new["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new);
        let mut put = state.store.put(key.clone(), new);
        if ending {
            put = state.store.remove(&key).unwrap_or(put);
        }
        Ok(Reply::Object(code, put))
    }
}

fn wants_metadata(parts: &Parts) -> bool {
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("as=PartialObjectMetadata;"))
}

fn parsed(body: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::new(400, format!("the body cannot be read: {error}")))
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|all| !all.is_empty())
}

/// The name of a new object, made when there is only how it begins.
fn named(state: &mut State, object: &mut Value) -> String {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    let (name, begins) = (text("name"), text("generateName"));
    if !name.is_empty() || begins.is_empty() {
        return name;
    }
    let uid = state.uid();
    let made = format!("{begins}{}", &uid[uid.len() - 5..]);
    object["metadata"]["name"] = made.clone().into();
    made
}

fn delete(state: &mut State, served: &Served, key: &Key, body: &Bytes, now: &str) -> Result<Reply, Failure> {
    let live = state.store.get(key).map(|stored| served.object(stored));
    let Some(mut live) = live else {
        return Err(Failure::not_found(&served.resource, &key.name));
    };
    let options = if body.is_empty() { Value::Null } else { parsed(body)? };
    for (member, what, what_then) in [
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ] {
        let (wanted, has) = (&options["preconditions"][member], &live["metadata"][member]);
        if let (Some(wanted), Some(has)) = (wanted.as_str(), has.as_str())
            && wanted != has
        {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({has}). The object might have been {what_then}"
            );
            let kind = served.resource.kind_shown();
            let message = format!("Operation cannot be fulfilled on {kind} \"{}\": {why}", key.name);
            return Err(Failure {
                about: Some(Box::new([
                    key.name.clone(),
                    served.resource.group.clone(),
                    served.resource.kind.clone(),
                ])),
                ..Failure::new(409, message)
            });
        }
    }
    if has_finalizers(&live) {
        if live["metadata"]["deletionTimestamp"].is_null() {
            live["metadata"]["deletionTimestamp"] = now.into();
            live["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            live = state.store.put(key.clone(), live);
        }
        return Ok(Reply::Object(StatusCode::OK, live));
    }
    let uid = live["metadata"]["uid"].clone();
    state.store.remove(key);
    if served.resource.plural == DEFINITIONS {
        let custom = crate::resources::id(
            live["spec"]["group"].as_str().unwrap_or_default(),
            live["spec"]["names"]["plural"].as_str().unwrap_or_default(),
        );
        state.resources.retain(|known| known.id != custom);
    }
    match served.resource.rules {
        Rules::Core => Ok(Reply::Object(StatusCode::OK, live)),
        _ => {
            let details =
                json!({"name": key.name, "group": served.resource.group, "kind": served.resource.plural, "uid": uid});
            let done =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            Ok(Reply::Object(StatusCode::OK, done))
        }
    }
}
