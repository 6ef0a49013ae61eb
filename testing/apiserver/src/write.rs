//! What a write makes of an object: the rules of create, update, patch and apply, without the store.

use serde_json::{Map, Value, json};

use crate::apply;
use crate::failure::Failure;
use crate::resources::{Resource, Target};

/// A write, apart from its object.
pub(crate) struct Write<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) target: &'a Target,
    /// RFC 3339.
    pub(crate) now: &'a str,
}

/// Members of the metadata that a client cannot change.
const FIXED: &str = "uid creationTimestamp generation deletionTimestamp namespace resourceVersion";

impl Write<'_> {
    /// `uid` is the new object's.
    pub(crate) fn create(&self, mut object: Value, uid: &str) -> Result<Value, Failure> {
        self.fits(&object)?;
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["creationTimestamp"] = self.now.into();
        if self.resource.custom {
            object["metadata"]["generation"] = 1.into();
        }
        if self.resource.namespaced {
            object["metadata"]["namespace"] = self.target.namespace.clone().into();
        }
        Ok(object)
    }

    /// `None`: nothing changes.
    pub(crate) fn replace(&self, live: &Value, object: Value) -> Result<Option<Value>, Failure> {
        self.fits(&object)?;
        if text(&object, "resourceVersion").is_empty() {
            let why = "Invalid value: 0: must be specified for an update";
            return Err(self.invalid("metadata.resourceVersion", why));
        }
        self.fresh(live, &object)?;
        Ok(self.kept(live, object))
    }

    /// A JSON merge patch (RFC 7386). `None`: nothing changes.
    pub(crate) fn patch(&self, live: &Value, patch: &Value) -> Result<Option<Value>, Failure> {
        self.fresh(live, patch)?;
        let mut object = live.clone();
        merge_patch(&mut object, patch);
        self.fits(&object)?;
        self.same(live, &object)?;
        Ok(self.kept(live, object))
    }

    /// `uid` is that of a new object. `None`: nothing changes.
    pub(crate) fn apply(
        &self,
        live: Option<&Value>,
        applied: Value,
        manager: &str,
        uid: &str,
    ) -> Result<Option<Value>, Failure> {
        self.fits(&applied)?;
        let Some(live) = live else {
            let wanted = text(&applied, "uid");
            let why =
                format!("uid mismatch: the provided object specified uid {wanted}, and no existing object was found");
            return match wanted {
                "" => self.create(applied, uid).map(Some),
                _ => Err(Failure::conflict(self.resource, &self.target.name, &why)),
            };
        };
        self.fresh(live, &applied)?;
        self.same(live, &applied)?;
        let object = if self.resource.custom {
            applied
        } else {
            apply::merged(live, &applied, manager, &self.target.subresource)
        };
        Ok(self.kept(live, object))
    }

    /// Whether the object is of the kind, and has the name and namespace, that the request's path says.
    fn fits(&self, object: &Value) -> Result<(), Failure> {
        let version = self.resource.api_version(&self.target.version);
        let (name, namespace) = (text(object, "name"), text(object, "namespace"));
        let message = if object["kind"] != self.resource.kind || object["apiVersion"] != version {
            format!("the object is no {} of {version}", self.resource.kind)
        } else if name.is_empty() || !self.target.name.is_empty() && name != self.target.name {
            format!("the name of the object ({name}) does not match the name on the URL")
        } else if !namespace.is_empty() && namespace != self.target.namespace {
            "the namespace of the provided object does not match the namespace sent on the request".to_owned()
        } else {
            return Ok(());
        };
        Err(Failure::new(400, message))
    }

    fn fresh(&self, live: &Value, object: &Value) -> Result<(), Failure> {
        let version = text(object, "resourceVersion");
        if version.is_empty() || live["metadata"]["resourceVersion"] == version {
            return Ok(());
        }
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Err(Failure::conflict(self.resource, &self.target.name, why))
    }

    fn same(&self, live: &Value, object: &Value) -> Result<(), Failure> {
        let uid = text(object, "uid");
        if uid.is_empty() || live["metadata"]["uid"] == uid {
            return Ok(());
        }
        Err(self.invalid("metadata.uid", &format!("Invalid value: {uid:?}: field is immutable")))
    }

    fn invalid(&self, field: &'static str, why: &str) -> Failure {
        Failure::invalid(self.resource, &self.target.name, field, why)
    }

    /// The object with what stays as it was, whatever the client sent. `None`: it is as it was.
    fn kept(&self, live: &Value, mut object: Value) -> Option<Value> {
        if self.target.subresource == "status" {
            let (status, owners) = (object["status"].take(), object["metadata"]["managedFields"].take());
            object = live.clone();
            object["status"] = status;
            object["metadata"]["managedFields"] = owners;
        } else if self.resource.has_status() {
            restore(live, &mut object, "status");
        }
        for name in FIXED.split(' ') {
            restore(&live["metadata"], &mut object["metadata"], name);
        }
        if object == *live {
            return None;
        }
        if self.resource.custom && content(live) != content(&object) {
            let generation = live["metadata"]["generation"].as_u64().unwrap_or_default();
            object["metadata"]["generation"] = (generation + 1).into();
        }
        Some(object)
    }
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// What of a custom resource raises its generation.
fn content(object: &Value) -> Value {
    let mut copy = object.clone();
    (copy["metadata"], copy["status"]) = (json!({}), Value::Null);
    copy
}

fn restore(live: &Value, object: &mut Value, name: &str) {
    if let Some(value) = live.get(name) {
        object[name] = value.clone();
    } else if let Some(map) = object.as_object_mut() {
        map.remove(name);
    }
}

fn merge_patch(object: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    let mut map = match object.take() {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (name, value) in changes {
        match value {
            Value::Null => {
                map.remove(name);
            }
            value => merge_patch(map.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
    *object = Value::Object(map);
}
