//! A user's manifest, YAML or JSON, becomes a [`Pod`] as the API server would store it.
//!
//! The API server's defaults are applied, and what it refuses about resources is refused, with its path. What is
//! irrelevant to kubelet's managers is not checked: a manifest that is accepted here may still be refused by the API
//! server.
//!
//! ```
//! use kubelet_planner::manifest::{ManifestError, read};
//!
//! let pod = |cpu: &str| {
//!     let limits = format!("{{cpu: {cpu}, memory: 8Gi}}");
//!     format!("{{apiVersion: v1, kind: Pod, metadata: {{name: vm}}, spec: {{containers: [{{name: a, resources: {{limits: {limits}}}}}]}}}}")
//! };
//! let (name, vm) = read(&pod("4"), None)?;
//! assert_eq!((name.as_str(), vm.containers[0].resources.requests.milli_cpus), ("vm", Some(4000)));
//! let error = read(&pod("4x"), None).unwrap_err().to_string();
//! assert_eq!(error, r#"spec.containers[0].resources.limits.cpu: "4x" is not a quantity, such as 2, 500m or 1Gi"#);
//! # Ok::<(), ManifestError>(())
//! ```

mod error;
mod fields;
mod flags;
mod kubevirt;
mod resources;
mod spec;
mod template;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use error::ManifestError;
pub use flags::{container, in_words};
pub use kubevirt::NodeRequirements;

use stelia_cpus::text::excerpt;
use stelia_kubelet::config::yaml_options;

use super::pod::Pod;
use fields::Field;

/// The longest manifest, in bytes: etcd takes 1.5 MiB.
pub const MAX_BYTES: usize = 3 << 19;
/// Limit of the documents that are named in an error.
const MAX_NAMED_DOCUMENTS: usize = 8;

/// A pod that a manifest describes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Described {
    /// The name of the Pod, or of the object that has its template.
    pub name: String,
    /// What kubelet's managers decide by.
    pub pod: Pod,
    /// The pod as a document of v1 with that name; made of the template where the manifest has only that.
    pub document: Value,
    /// What KubeVirt requires of the pod's node; neither the pod nor the document has it.
    pub requirements: NodeRequirements,
    /// What was assumed to choose it and to make it of a template, a sentence each.
    pub assumed: Vec<String>,
}

/// The only Pod of a text with one or more documents, or the one with this name; and its name. See [`described`].
///
/// # Errors
/// See [`ManifestError`].
pub fn read(text: &str, name: Option<&str>) -> Result<(String, Pod), ManifestError> {
    described(text, name).map(|found| (found.name, found.pod))
}

/// The only pod of a text with one or more documents, or the one that `name` names as `NAME` or `KIND/NAME`: a Pod, or a pod of which an
/// object has the template: a Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob or PodTemplate, or a
/// VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet or VirtualMachinePool of KubeVirt. Without a name the only Pod goes
/// before objects with templates, which are named in [`Described::assumed`]. The objects of a list count like documents.
///
/// # Errors
/// See [`ManifestError`].
pub fn described(text: &str, name: Option<&str>) -> Result<Described, ManifestError> {
    if text.len() > MAX_BYTES {
        return Err(ManifestError::TooLong(MAX_BYTES));
    }
    let documents: Vec<Value> = documents(text)?.into_iter().flat_map(items).collect();
    let documents = documents.iter().filter(|value| !value.is_null());
    let found: Vec<Document<'_>> = documents.map(Document::of).collect();
    if found.is_empty() {
        return Err(ManifestError::Empty);
    }
    let candidates = found
        .iter()
        .filter(|document| document.is_pod() || document.has_template());
    let candidates = candidates.filter(|document| name.is_none_or(|name| document.is_called(name)));
    let mut wanted: Vec<&Document<'_>> = candidates.collect();
    let mut others = Vec::new();
    if name.is_none() && wanted.iter().any(|document| document.is_pod()) {
        (wanted, others) = wanted.into_iter().partition(|document| document.is_pod());
    }
    match (wanted.as_slice(), name) {
        ([one], _) => {
            let mut described = one.described()?;
            if !others.is_empty() {
                let others = called(&others);
                described.assumed.push(format!(
                    "the answer is for the Pod and not for {others}, which --pod KIND/NAME chooses"
                ));
            }
            Ok(described)
        }
        ([], Some(name)) => Err(ManifestError::NoSuchPod {
            wanted: excerpt::excerpt(name),
            found: listed(&found),
        }),
        ([], None) => Err(ManifestError::NoPod(listed(&found))),
        (several, _) => Err(ManifestError::SeveralPods(called(several))),
    }
}

/// Documents as `KIND/NAME`, as an argument names them.
fn called(documents: &[&Document<'_>]) -> String {
    let one = |document: &&Document<'_>| format!("{}/{}", excerpt::name(document.kind), excerpt::name(document.name));
    let mut names: Vec<String> = documents.iter().take(MAX_NAMED_DOCUMENTS).map(one).collect();
    if documents.len() > MAX_NAMED_DOCUMENTS {
        names.push(format!("{} more", documents.len() - MAX_NAMED_DOCUMENTS));
    }
    names.join(", ")
}

/// The Pod of one document, without a look at its kind and name: a scheduler is told Pods alone, without these.
///
/// # Errors
/// See [`ManifestError`].
pub fn pod(document: &Value) -> Result<Pod, ManifestError> {
    spec::pod(&Field::root(document))
}

/// A document of the text, and what identifies it.
struct Document<'a> {
    value: &'a Value,
    version: &'a str,
    kind: &'a str,
    name: &'a str,
}

impl<'a> Document<'a> {
    fn of(value: &'a Value) -> Self {
        let text = |value: &'a Value| value.as_str().unwrap_or_default();
        let metadata = &value["metadata"];
        let given = text(&metadata["name"]);
        Self {
            value,
            version: text(&value["apiVersion"]),
            kind: text(&value["kind"]),
            name: match given {
                "" => text(&metadata["generateName"]),
                given => given,
            },
        }
    }

    /// Whether an argument names it, as `NAME` or `KIND/NAME`; kinds are compared as kubectl does, without regard to case.
    fn is_called(&self, name: &str) -> bool {
        match name.split_once('/') {
            Some((kind, name)) => self.kind.eq_ignore_ascii_case(kind) && self.name == name,
            None => self.name == name,
        }
    }

    fn is_pod(&self) -> bool {
        (self.version, self.kind) == ("v1", "Pod")
    }

    fn has_template(&self) -> bool {
        template::is_one(self.version, self.kind)
    }

    fn described(&self) -> Result<Described, ManifestError> {
        let name = self.name.to_owned();
        if self.is_pod() {
            return Ok(Described {
                name,
                pod: spec::pod(&Field::root(self.value))?,
                document: self.value.clone(),
                requirements: NodeRequirements::default(),
                assumed: Vec::new(),
            });
        }
        let made = template::pod(self.value, self.version, self.kind, self.name)?;
        let pod = spec::pod(&Field::root(&made.document)).map_err(|cause| cause.below(&made.path))?;
        Ok(Described {
            name,
            pod,
            document: made.document,
            requirements: made.requirements,
            assumed: made.assumed,
        })
    }
}

/// The objects of a list, as `kubectl get -o yaml` prints one; anything else alone.
fn items(mut document: Value) -> Vec<Value> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items,
        Some(items) => {
            document["items"] = items;
            vec![document]
        }
        None => vec![document],
    }
}

/// The documents as an error lists them: kinds and names.
fn listed(found: &[Document<'_>]) -> String {
    let one = |found: &Document<'_>| match found.kind {
        "" => "something without a kind".to_owned(),
        "Pod" if !found.is_pod() => format!("{:?} of {:?}", found.kind, excerpt::excerpt(found.version)),
        kind => format!("{} {:?}", excerpt::name(kind), excerpt::excerpt(found.name)),
    };
    let mut named: Vec<String> = found.iter().take(MAX_NAMED_DOCUMENTS).map(one).collect();
    if found.len() > MAX_NAMED_DOCUMENTS {
        named.push(format!("{} more", found.len() - MAX_NAMED_DOCUMENTS));
    }
    named.join(", ")
}

fn documents(text: &str) -> Result<Vec<Value>, ManifestError> {
    // JSON that is not YAML, because it is indented by tabs, is accepted too.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(vec![value]);
    }
    serde_saphyr::from_multiple_with_options(text, yaml_options())
        .map_err(|cause| ManifestError::Syntax(excerpt::cause(&cause)))
}
