//! What is checked of an object that a client sends, in the order and the words of the API server.

use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::resources::qualified;
use crate::rules;
use crate::write::Write;

const MAY_BE_EMPTY: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

impl Write<'_> {
    /// Whether the object is of the kind that the request's path says.
    pub(crate) fn kind_fits(&self, object: &Value) -> Result<(), Failure> {
        let text = |name: &str| object[name].as_str().unwrap_or_default();
        let (kind, version) = (text("kind"), text("apiVersion"));
        let expected = self.api_version();
        if kind.is_empty() || version.is_empty() {
            let kind = &self.resource.kind;
            let message =
                format!("the object provided is unrecognized (must be of type {kind}): Object 'Kind' is missing");
            return Err(Failure::new(400, message));
        }
        if version != expected {
            let message =
                format!("the API version in the data ({version}) does not match the expected API version ({expected})");
            return Err(Failure::new(400, message));
        }
        if kind != self.resource.kind {
            let fault = format!("kind: Invalid value: {kind:?}: must be {}", self.resource.kind);
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(Failure::invalid(&qualified(kind, &self.resource.group), name, &[fault]));
        }
        Ok(())
    }

    /// Whether its name and namespace are those of the path.
    pub(crate) fn place_fits(&self, object: &Value) -> Result<(), Failure> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if !self.name().is_empty() && name != self.name() {
            let message = format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.name()
            );
            return Err(Failure::new(400, message));
        }
        let namespace = object["metadata"]["namespace"].as_str();
        if namespace.is_some_and(|namespace| namespace != self.target.namespace) {
            let message = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Failure::new(400, message));
        }
        Ok(())
    }

    /// An object that is applied is typed before it is merged, and what does not fit is the server's error.
    pub(crate) fn typed(&self, config: &Value) -> Result<(), Failure> {
        let unknown = self.schema.prune(&mut config.clone());
        let unknown = unknown
            .first()
            .map(|place| format!(".{place}: field not declared in schema"));
        let faults = self.schema.faults(config);
        let fault = unknown.or_else(|| faults.iter().find_map(|fault| untyped(fault)));
        let Some(fault) = fault else { return Ok(()) };
        let (name, kind) = (self.name(), &self.resource.kind);
        let namespace = config["metadata"]["namespace"].as_str().unwrap_or_default();
        let target = format!("{namespace}/{name}; {}, Kind={kind}", self.api_version());
        let message = format!("failed to create typed patch object ({target}): {fault}");
        Err(Failure::plain(message))
    }

    /// In the store's words.
    pub(crate) fn other_uid(&self, wanted: &str, has: &str) -> String {
        let target = self.target;
        let mut key = format!("/registry/{}/{}", target.group, target.plural);
        for part in [&target.namespace, &target.name]
            .into_iter()
            .filter(|part| !part.is_empty())
        {
            key.push('/');
            key.push_str(part);
        }
        format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
             Precondition failed: UID in precondition: {wanted}, UID in object meta: {has}"
        )
    }

    pub(crate) fn fresh(&self, live: &Value, object: &Value) -> Result<(), Failure> {
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if version.is_empty() || live["metadata"]["resourceVersion"] == version {
            Ok(())
        } else {
            Err(Failure::stale(self.resource, self.name()))
        }
    }

    /// What is checked of an applied object when nobody's fields are in its way.
    pub(crate) fn applicable(&self, live: Option<&Value>, config: &Value) -> Result<(), Failure> {
        let name = &config["metadata"]["name"];
        match (live, name.as_str().unwrap_or_default()) {
            // The merged object has the name that there was.
            (Some(_), "") => {}
            (None, "") => {
                let name = self.name();
                let message =
                    format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
                return Err(Failure::new(400, message));
            }
            _ => self.place_fits(config)?,
        }
        let wanted = config["metadata"]["uid"].as_str().unwrap_or_default();
        let Some(live) = live else {
            let why =
                format!("uid mismatch: the provided object specified uid {wanted}, and no existing object was found");
            return if wanted.is_empty() {
                Ok(())
            } else {
                Err(Failure::conflict(self.resource, self.name(), &why))
            };
        };
        self.fresh(live, config)?;
        if !wanted.is_empty() && live["metadata"]["uid"] != wanted {
            let fault = format!("metadata.uid: Invalid value: {wanted:?}: field is immutable");
            return Err(Failure::invalid(&self.resource.kind_shown(), self.name(), &[fault]));
        }
        Ok(())
    }

    pub(crate) fn checked(&self, object: &mut Value) -> Result<(), Failure> {
        tidied(object);
        let unknown = self.schema.prune(object);
        if self.strict && !unknown.is_empty() {
            let list: Vec<String> = unknown
                .iter()
                .map(|place| format!("unknown field \"{place}\""))
                .collect();
            let kind = &self.resource.kind;
            let message = format!(
                "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {}",
                self.target.version,
                list.join(", ")
            );
            return Err(Failure::new(400, message));
        }
        Ok(())
    }

    pub(crate) fn valid(&self, live: Option<&Value>, object: &Value) -> Result<(), Failure> {
        let mut faults = self.schema.faults(object);
        faults.extend(rules::faults(self.resource.rules, live, object));
        if faults.is_empty() {
            Ok(())
        } else {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            Err(Failure::invalid(&self.resource.kind_shown(), name, &faults))
        }
    }
}

/// Removes empty members of the metadata.
pub(crate) fn tidied(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let empty = [Value::Null, Value::Object(Map::new()), Value::Array(Vec::new())];
        metadata.retain(|name, value| !MAY_BE_EMPTY.contains(&name.as_str()) || !empty.contains(value));
    }
}

/// A fault of validation as merging would find it, when it would.
fn untyped(fault: &str) -> Option<String> {
    let (place, rest) = fault.split_once(": ")?;
    if let Some((list, _)) = place.rsplit_once('[').filter(|_| rest.starts_with("Duplicate value")) {
        return Some(format!(".{list}: duplicate entries"));
    }
    let expected = rest.split_once("must be of type ")?.1.split(':').next()?;
    let expected = match expected {
        "array" => "list",
        "object" => "map",
        "integer" | "number" => "numeric",
        other => other,
    };
    Some(format!(".{place}: expected {expected}"))
}
