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
mod resources;
mod spec;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use error::ManifestError;
pub use flags::{container, in_words};

use stelia_kubelet::config::yaml_options;
use stelia_text::excerpt;

use super::pod::Pod;
use fields::Field;

/// The longest manifest, in bytes: etcd takes 1.5 MiB.
pub const MAX_BYTES: usize = 3 << 19;
/// Limit of the documents that are named in an error.
const MAX_NAMED_DOCUMENTS: usize = 8;

/// The only Pod of a text with one or more documents, or the one with this name; and its name.
///
/// # Errors
/// See [`ManifestError`].
pub fn read(text: &str, name: Option<&str>) -> Result<(String, Pod), ManifestError> {
    if text.len() > MAX_BYTES {
        return Err(ManifestError::TooLong(MAX_BYTES));
    }
    let documents = documents(text)?;
    let documents = documents.iter().filter(|value| !value.is_null());
    let found: Vec<Document<'_>> = documents.map(Document::of).collect();
    if found.is_empty() {
        return Err(ManifestError::Empty);
    }
    let pods = || found.iter().filter(|found| found.is_pod());
    let wanted: Vec<&Document<'_>> = pods().filter(|pod| name.is_none_or(|name| pod.name == name)).collect();
    match (wanted.as_slice(), name) {
        ([one], _) => Ok((one.name.to_owned(), spec::pod(&Field::root(one.value))?)),
        ([], Some(name)) => Err(ManifestError::NoSuchPod {
            wanted: excerpt::excerpt(name),
            found: listed(&found),
        }),
        ([], None) => Err(ManifestError::NoPod(listed(&found))),
        (several, _) => {
            let names = several.iter().take(MAX_NAMED_DOCUMENTS);
            let names: Vec<String> = names.map(|pod| format!("{:?}", excerpt::excerpt(pod.name))).collect();
            Err(ManifestError::SeveralPods(names.join(", ")))
        }
    }
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

    fn is_pod(&self) -> bool {
        (self.version, self.kind) == ("v1", "Pod")
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
