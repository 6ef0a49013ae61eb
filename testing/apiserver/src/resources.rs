//! The resources that the server has, and where a request points.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::schema::Schema;

/// A resource, in all its versions.
#[derive(Debug)]
pub(crate) struct Resource {
    /// As in keys: `group/plural`.
    pub(crate) id: Arc<str>,
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    /// By version.
    pub(crate) versions: BTreeMap<String, Schema>,
    pub(crate) rules: Rules,
}

/// What is peculiar to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// A custom resource; whether its status is a subresource.
    Custom {
        status: bool,
    },
    /// Its status is a subresource, and members that the schema does not name are kept.
    Core,
    Event,
    Lease,
}

impl Resource {
    /// As messages name it: `pods`, `leases.coordination.k8s.io`.
    pub(crate) fn shown(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// As messages name its kind: `Pod`, `Lease.coordination.k8s.io`.
    pub(crate) fn kind_shown(&self) -> String {
        qualified(&self.kind, &self.group)
    }

    pub(crate) fn api_version(&self, version: &str) -> String {
        match self.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    pub(crate) fn has_status(&self) -> bool {
        matches!(self.rules, Rules::Core | Rules::Custom { status: true })
    }

    /// From a CustomResourceDefinition.
    pub(crate) fn custom(definition: &Value) -> Result<Self, String> {
        let spec = &definition["spec"];
        let text = |value: &Value, what: &str| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or(format!("{what}: a text is missing"))
        };
        let (group, plural) = (
            text(&spec["group"], "spec.group")?,
            text(&spec["names"]["plural"], "spec.names.plural")?,
        );
        let mut versions = BTreeMap::new();
        let mut status = false;
        for version in spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["served"] == true)
        {
            status |= !version["subresources"]["status"].is_null();
            let mut schema = version["schema"]["openAPIV3Schema"].clone();
            complete(&mut schema);
            versions.insert(text(&version["name"], "spec.versions.name")?, Schema::read(&schema)?);
        }
        Ok(Self {
            id: id(&group, &plural),
            kind: text(&spec["names"]["kind"], "spec.names.kind")?,
            namespaced: spec["scope"] == "Namespaced",
            group,
            plural,
            versions,
            rules: Rules::Custom { status },
        })
    }

    fn built_in(
        group: &str,
        plural: &str,
        kind: &str,
        namespaced: bool,
        rules: Rules,
        lists: Value,
    ) -> Result<Self, String> {
        let mut schema = lists;
        schema["type"] = "object".into();
        complete(&mut schema);
        open(&mut schema);
        Ok(Self {
            id: id(group, plural),
            group: group.into(),
            plural: plural.into(),
            kind: kind.into(),
            namespaced,
            versions: [("v1".to_owned(), Schema::read(&schema)?)].into(),
            rules,
        })
    }
}

pub(crate) fn id(group: &str, plural: &str) -> Arc<str> {
    format!("{group}/{plural}").into()
}

pub(crate) fn qualified(name: &str, group: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}

/// What every object has, whatever its own schema says of it.
fn complete(schema: &mut Value) {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    schema["properties"]["apiVersion"] = json!({"type": "string"});
    schema["properties"]["kind"] = json!({"type": "string"});
    schema["properties"]["metadata"] = json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "labels": texts, "annotations": texts,
            "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "ownerReferences": {
                "type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-map-type": "atomic"},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
            },
        },
    });
}

fn open(schema: &mut Value) {
    if schema["type"] == "object" {
        schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    }
    if let Some(members) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        members.values_mut().for_each(open);
    }
    if let Some(items) = schema.get_mut("items") {
        open(items);
    }
}

/// Only where lists are merged; the rest of these kinds is not checked.
pub(crate) fn built_in() -> Result<Vec<Resource>, String> {
    let by = |key: &str| json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]});
    let object = |members: Value| json!({"type": "object", "properties": members});
    let none = || json!({});
    let node = object(json!({"status": object(json!({"conditions": by("type"), "addresses": by("type")}))}));
    let pod = object(json!({
        "spec": object(json!({
            "containers": by("name"), "initContainers": by("name"), "volumes": by("name"), "readinessGates": none(),
            "imagePullSecrets": by("name"), "schedulingGates": by("name"),
        })),
        "status": object(json!({"conditions": by("type")})),
    }));
    let events = "events.k8s.io";
    Ok(vec![
        Resource::built_in("", "nodes", "Node", false, Rules::Core, node)?,
        Resource::built_in("", "pods", "Pod", true, Rules::Core, pod)?,
        Resource::built_in("", "namespaces", "Namespace", false, Rules::Core, none())?,
        Resource::built_in(events, "events", "Event", true, Rules::Event, none())?,
        Resource::built_in("coordination.k8s.io", "leases", "Lease", true, Rules::Lease, none())?,
        Resource::built_in(
            "discovery.k8s.io",
            "endpointslices",
            "EndpointSlice",
            true,
            Rules::Core,
            none(),
        )?,
        Resource::built_in(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            false,
            Rules::Core,
            none(),
        )?,
    ])
}

/// The parts of a request's path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    /// Empty: of the cluster, or of all namespaces.
    pub(crate) namespace: String,
    /// Empty: all of them.
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Target {
    /// `None`: no path of a resource.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let (group, version) = match parts.next()? {
            "api" => ("", parts.next()?),
            "apis" => (parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !["status", "finalize"].contains(&rest[0]) => {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        Some(Self {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
            subresource: subresource.into(),
        })
    }

    /// As roles name it: `pods/status`.
    pub(crate) fn resource(&self) -> String {
        match self.subresource.as_str() {
            "" => self.plural.clone(),
            subresource => format!("{}/{subresource}", self.plural),
        }
    }
}
