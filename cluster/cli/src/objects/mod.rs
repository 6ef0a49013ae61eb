//! Nodes, pods and NodeResourceTopologies, as the API server and `kubectl get -o json` print them.
//!
//! Each object stands for itself: one that cannot be read is a [`Problem`] with its name, and the others are read all the same.

mod kinds;
mod problem;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use stelia_cpus::text::excerpt;
use stelia_koordinator::report::stored::Stored;
use stelia_kubelet::config::yaml_options;

pub use kinds::{Condition, NodeObject, PodObject, PodSpec, Status, Taint};
pub(crate) use kinds::{asked, own_cpus, parse};
pub use problem::{Problem, Problems, Unreadable};

/// Lists in lists are read to this depth; `kubectl` prints one list.
const MAX_LIST_DEPTH: u32 = 4;

/// A pod's namespace and name.
pub type PodKey = (String, String);

/// A node's published description.
#[derive(Debug, PartialEq)]
pub struct Report {
    pub stored: Stored,
    /// When its writer last wrote it, microseconds since the epoch, where `managedFields` tells.
    pub written_us: Option<u64>,
}

/// All objects by name. If an object is there twice, the later one counts; two that differ in one input are a problem.
#[derive(Debug, Default)]
pub struct Objects {
    /// Whether pods are read at all.
    with_pods: bool,
    pub nodes: BTreeMap<String, NodeObject>,
    pub reports: BTreeMap<String, Report>,
    pub pods: BTreeMap<PodKey, PodObject>,
    /// The name of the pod that is asked about.
    asked_name: Option<String>,
    /// The pods of that name, whole, as `PodRequest::of_cluster` takes them.
    pub asked: BTreeMap<PodKey, String>,
    pub problems: Problems,
    pub unreadable: Unreadable,
    /// Whether texts are read, in which an object is there once. The pages of the API server may be read again.
    is_text: bool,
}

/// An object as far as it says what it is.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default, rename = "apiVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Option<HeadMetadata<'a>>,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct HeadMetadata<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "continue")]
    next: Option<Cow<'a, str>>,
}

impl Head<'_> {
    /// As messages name the object.
    fn named(&self, kind: &str) -> String {
        let text = |text: &Option<Cow<'_, str>>| text.as_deref().map(excerpt::name);
        let metadata = self.metadata.as_ref();
        let name = metadata.and_then(|metadata| text(&metadata.name));
        let namespace = metadata.and_then(|metadata| text(&metadata.namespace));
        let kind = excerpt::name(kind);
        match (namespace, name) {
            (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
            (None, Some(name)) => format!("{kind} {name}"),
            (_, None) => format!("{kind} without a name"),
        }
    }
}

impl Objects {
    /// `with_pods`: whether pods are read at all.
    pub fn new(with_pods: bool) -> Self {
        Self {
            with_pods,
            ..Self::default()
        }
    }

    /// Keeps the pods of this name whole.
    #[must_use]
    pub fn asking_about(self, pod: Option<&str>) -> Self {
        Self {
            asked_name: pod.map(str::to_owned),
            ..self
        }
    }

    /// Reads a text of one or more documents, JSON or YAML; `source` is what messages call it.
    pub fn read(&mut self, source: &str, text: &str) {
        self.is_text = true;
        let text = text.trim_start_matches('\u{feff}');
        if !text.trim_start().starts_with(['{', '[']) {
            return self.read_yaml(source, text);
        }
        for document in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
            match document {
                Ok(document) => self.object(source, document.get(), "", MAX_LIST_DEPTH),
                // Where the text is broken the rest of it is lost.
                Err(cause) => return self.cannot_be_read(source, "", &excerpt::cause(&cause)),
            }
        }
    }

    fn read_yaml(&mut self, source: &str, text: &str) {
        let documents: Result<Vec<serde_json::Value>, _> =
            serde_saphyr::from_multiple_with_options(text, yaml_options());
        match documents {
            Ok(documents) => {
                for document in documents.iter().filter(|document| !document.is_null()) {
                    self.object(source, &document.to_string(), "", MAX_LIST_DEPTH);
                }
            }
            Err(cause) => self.cannot_be_read(source, "", &excerpt::cause(&cause)),
        }
    }

    /// A problem with objects whose names are not known.
    fn cannot_be_read(&mut self, source: &str, object: &str, what: &str) {
        self.unreadable.without_name += 1;
        self.problems.add(source, object, what);
    }

    /// Reads a page of a list whose items are of this kind, and returns the token of the next page.
    pub fn read_page(&mut self, source: &str, text: &str, kind: &str) -> Option<String> {
        self.object(source, text, kind, MAX_LIST_DEPTH);
        let head: Head<'_> = serde_json::from_str(text).ok()?;
        let next = head.metadata?.next?;
        (!next.is_empty()).then(|| next.into_owned())
    }

    /// Reads an object, or those of a list; `kind` where an item does not say its own.
    fn object(&mut self, source: &str, text: &str, kind: &str, depth: u32) {
        let head: Head<'_> = match serde_json::from_str(text) {
            Ok(head) => head,
            Err(cause) => return self.cannot_be_read(source, kind, &excerpt::cause(&cause)),
        };
        let own = head.kind.as_deref().filter(|own| !own.is_empty()).unwrap_or(kind);
        if let Some(items) = &head.items {
            let of = own.strip_suffix("List").unwrap_or(own);
            if depth == 0 {
                return self.cannot_be_read(source, own, "lists in lists, too deep");
            }
            for item in items {
                self.object(source, item.get(), of, depth - 1);
            }
            return;
        }
        let group = head.version.as_deref().unwrap_or_default();
        let read = match own {
            "Node" => self.node(text),
            "Pod" if self.with_pods => self.pod(text),
            "NodeResourceTopology" if group.is_empty() || group.starts_with("topology.node.k8s.io/") => {
                self.report(text)
            }
            // Others are of no interest, and no error in a dump of everything.
            _ => Ok(()),
        };
        if let Err(cause) = read {
            let name = head.metadata.as_ref().and_then(|metadata| metadata.name.as_deref());
            self.unreadable.add(own, name, &cause);
            self.problems.add(source, &head.named(own), &cause);
        }
    }

    fn node(&mut self, text: &str) -> Result<(), String> {
        let (name, node) = NodeObject::read(text)?;
        let is_another = self.nodes.get(&name).is_some_and(|known| *known != node);
        self.nodes.insert(name, node);
        self.once(is_another)
    }

    fn report(&mut self, text: &str) -> Result<(), String> {
        let stored = Stored::read(text).map_err(|cause| cause.to_string())?;
        let report = Report {
            written_us: kinds::written_us(text),
            stored,
        };
        let known = self.reports.get(&report.stored.name);
        let is_another = known.is_some_and(|known| *known != report);
        self.reports.insert(report.stored.name.clone(), report);
        self.once(is_another)
    }

    /// Which of two objects describes the node is not known.
    fn once(&self, is_another: bool) -> Result<(), String> {
        if self.is_text && is_another {
            Err("the input has two different objects of this kind and name".to_owned())
        } else {
            Ok(())
        }
    }

    fn pod(&mut self, text: &str) -> Result<(), String> {
        let (key, pod, problem) = PodObject::read(text)?;
        if let Some(problem) = problem {
            self.problems.add("", &format!("Pod {}/{}", key.0, key.1), &problem);
        }
        if self.asked_name.as_ref() == Some(&key.1) {
            self.asked.insert(key.clone(), text.to_owned());
        }
        self.pods.insert(key, pod);
        Ok(())
    }
}
