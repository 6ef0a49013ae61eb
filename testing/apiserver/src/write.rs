//! What a write makes of an object: the rules of create, update, patch and apply, without the store.

use serde_json::{Map, Value, json};

use crate::apply;
use crate::checks::tidied;
use crate::failure::Failure;
use crate::managers::{self, Manager, Operation, Owner};
use crate::resources::{Resource, Rules, Target};
use crate::rules;
use crate::schema::Schema;

/// A write, apart from its object.
pub(crate) struct Write<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) schema: &'a Schema,
    pub(crate) target: &'a Target,
    /// The field manager.
    pub(crate) manager: &'a str,
    /// `fieldValidation=Strict`: a member that the schema does not have is an error instead of being dropped.
    pub(crate) strict: bool,
    /// RFC 3339, whole seconds.
    pub(crate) now: &'a str,
}

/// Members of the metadata that a client cannot change.
const FIXED: [&str; 5] = [
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "namespace",
];

impl Write<'_> {
    /// `uid` is the new object's.
    pub(crate) fn create(&self, mut object: Value, uid: &str) -> Result<Value, Failure> {
        self.kind_fits(&object)?;
        self.place_fits(&object)?;
        if object["metadata"]["resourceVersion"]
            .as_str()
            .is_some_and(|version| !version.is_empty())
        {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Failure::plain(message));
        }
        self.born(&mut object, uid);
        self.checked(&mut object)?;
        self.valid(None, &object)?;
        let owners = apply::update(
            self.schema,
            &Value::Object(Map::new()),
            &object,
            Vec::new(),
            &self.as_manager(Operation::Update),
            self.now,
        );
        managers::write(&owners, &mut object);
        Ok(object)
    }

    /// `None`: nothing changes.
    pub(crate) fn replace(&self, live: &Value, object: Value) -> Result<Option<Value>, Failure> {
        self.kind_fits(&object)?;
        self.place_fits(&object)?;
        let wanted = object["metadata"]["uid"].as_str().unwrap_or_default();
        let has = live["metadata"]["uid"].as_str().unwrap_or_default();
        if !wanted.is_empty() && wanted != has {
            let why = self.other_uid(wanted, has);
            return Err(Failure::conflict(self.resource, self.name(), &why));
        }
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if version.is_empty() && matches!(self.resource.rules, Rules::Custom { .. } | Rules::Lease) {
            let fault = "metadata.resourceVersion: Invalid value: 0: must be specified for an update".to_owned();
            return Err(Failure::invalid(&self.resource.shown(), self.name(), &[fault]));
        }
        self.fresh(live, &object)?;
        self.update(live, object)
    }

    /// A JSON merge patch (RFC 7386). `None`: nothing changes.
    pub(crate) fn patch(&self, live: &Value, patch: &Value) -> Result<Option<Value>, Failure> {
        if !patch.is_object() {
            return Err(Failure::new(
                400,
                "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            ));
        }
        self.fresh(live, patch)?;
        let mut object = live.clone();
        merge_patch(&mut object, patch);
        self.kind_fits(&object)?;
        self.place_fits(&object)?;
        if object["metadata"]["uid"] != live["metadata"]["uid"] {
            let fault = format!(
                "metadata.uid: Invalid value: {}: field is immutable",
                object["metadata"]["uid"]
            );
            return Err(Failure::invalid(&self.resource.kind_shown(), self.name(), &[fault]));
        }
        self.update(live, object)
    }

    /// Server-side apply. `uid` is that of a new object. `None`: nothing changes.
    pub(crate) fn apply(
        &self,
        live: Option<&Value>,
        mut config: Value,
        force: bool,
        uid: &str,
    ) -> Result<Option<Value>, Failure> {
        if self.manager.is_empty() {
            let fault = "fieldManager: Required value: is required for apply patch".to_owned();
            return Err(Failure::invalid("PatchOptions.meta.k8s.io", "", &[fault]));
        }
        if config["metadata"]["managedFields"]
            .as_array()
            .is_some_and(|entries| !entries.is_empty())
        {
            return Err(Failure::new(400, "metadata.managedFields must be nil"));
        }
        if config["kind"] != self.resource.kind {
            let message = format!(
                "invalid object type: {}, Kind={}",
                self.api_version(),
                config["kind"].as_str().unwrap_or_default()
            );
            return Err(Failure::new(400, message));
        }
        self.kind_fits(&config)?;
        self.typed(&config)?;
        let whole = config.clone();
        self.only_own_part(&mut config);
        let empty = Value::Object(Map::new());
        let base = live.unwrap_or(&empty);
        let mut owners = managers::read(base);
        if let (Some(live), true) = (live, owners.is_empty()) {
            owners.push(apply::before(self.schema, live, &self.api_version(), self.now));
        }
        let manager = self.as_manager(Operation::Apply);
        let applied =
            apply::apply(self.schema, base, owners, &config, &manager, force, self.now).map_err(|conflicts| {
                let mut failure = Failure::new(409, managers::conflict_message(&conflicts));
                failure.causes = managers::conflict_causes(&conflicts);
                failure
            })?;
        let mut object = applied.object;
        self.applicable(live, &whole)?;
        match live {
            None => self.born(&mut object, uid),
            Some(live) => self.kept(live, &mut object),
        }
        // Null is not dropped here: no client sent it.
        tidied(&mut object);
        self.valid(live, &object)?;
        Ok(self.ended(live, object, &applied.owners))
    }

    fn update(&self, live: &Value, mut object: Value) -> Result<Option<Value>, Failure> {
        self.kept(live, &mut object);
        self.checked(&mut object)?;
        self.valid(Some(live), &object)?;
        let manager = self.as_manager(Operation::Update);
        let owners = apply::update(self.schema, live, &object, managers::read(live), &manager, self.now);
        Ok(self.ended(Some(live), object, &owners))
    }

    fn as_manager(&self, operation: Operation) -> Manager {
        Manager {
            name: self.manager.to_owned(),
            operation,
            api_version: self.api_version(),
            subresource: self.target.subresource.clone(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.target.name
    }

    pub(crate) fn api_version(&self) -> String {
        self.resource.api_version(&self.target.version)
    }

    /// The metadata of a new object.
    fn born(&self, object: &mut Value, uid: &str) {
        if self.resource.has_status() && self.resource.plural != "nodes" {
            remove(object, "status");
        }
        if self.resource.plural == "pods" {
            object["status"] = json!({"phase": "Pending"});
        }
        let metadata = &mut object["metadata"];
        for name in ["resourceVersion", "selfLink", "deletionTimestamp"] {
            remove(metadata, name);
        }
        metadata["uid"] = uid.into();
        metadata["creationTimestamp"] = self.now.into();
        if matches!(self.resource.rules, Rules::Custom { .. }) {
            metadata["generation"] = 1.into();
        }
        if self.resource.namespaced {
            metadata["namespace"] = self.target.namespace.clone().into();
        }
    }

    /// The part of an object that a request to this path writes, and nothing else.
    fn only_own_part(&self, config: &mut Value) {
        match self.target.subresource.as_str() {
            "" if self.resource.has_status() => remove(config, "status"),
            "status" => {
                let own = |name: &String| ["apiVersion", "kind", "metadata", "status"].contains(&name.as_str());
                config
                    .as_object_mut()
                    .into_iter()
                    .for_each(|map| map.retain(|name, _| own(name)));
            }
            _ => {}
        }
    }

    /// What stays as it was, whatever the client sent.
    fn kept(&self, live: &Value, object: &mut Value) {
        let own = match self.target.subresource.as_str() {
            "" if self.resource.has_status() => ["status"].as_slice(),
            _ => &[],
        };
        for name in own {
            restore(live, object, name);
        }
        if self.target.subresource == "status" {
            let both = [live, &*object].into_iter().filter_map(Value::as_object);
            let names: Vec<String> = both.flat_map(Map::keys).cloned().collect();
            let custom = matches!(self.resource.rules, Rules::Custom { .. });
            for name in names
                .iter()
                .filter(|name| *name != "status" && (custom || *name != "metadata"))
            {
                restore(live, object, name);
            }
            if self.resource.plural == "pods" {
                restore(&live["metadata"], &mut object["metadata"], "ownerReferences");
            }
        }
        for name in FIXED.iter().chain(&["resourceVersion", "managedFields"]) {
            restore(&live["metadata"], &mut object["metadata"], name);
        }
    }

    fn ended(&self, live: Option<&Value>, mut object: Value, owners: &[Owner]) -> Option<Value> {
        if let Some(live) = live
            && matches!(self.resource.rules, Rules::Custom { .. })
            && self.target.subresource.is_empty()
            && rules::content(live) != rules::content(&object)
        {
            let generation = live["metadata"]["generation"].as_u64().unwrap_or_default();
            object["metadata"]["generation"] = (generation + 1).into();
        }
        managers::write(owners, &mut object);
        match live {
            Some(live) if timeless(live) == timeless(&object) => None,
            _ => Some(object),
        }
    }
}

/// Apart from when its managers wrote, which alone is no reason for a write.
fn timeless(object: &Value) -> Value {
    let mut copy = object.clone();
    if let Some(Value::Array(entries)) = copy.pointer_mut("/metadata/managedFields") {
        entries.iter_mut().for_each(|entry| entry["time"] = Value::Null);
    }
    copy
}

fn remove(value: &mut Value, name: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(name);
    }
}

fn restore(live: &Value, object: &mut Value, name: &str) {
    match live.get(name) {
        Some(value) => object[name] = value.clone(),
        None => remove(object, name),
    }
}

pub(crate) fn merge_patch(object: &mut Value, patch: &Value) {
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
