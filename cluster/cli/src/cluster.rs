//! The cluster: each node with its Node object, its description, and what the pods bound to it request.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;

use kube::core::{Selector, SelectorExt};
use stelia_koordinator::report::stored::Holder;

use crate::Failure;
use crate::chooser::Chooser;
use crate::eligible::Used;
use crate::objects::{NodeObject, Objects, PodKey, PodObject, Problems, Report};

/// A node with everything that is known about it.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    /// `None` where no Node of that name was read.
    pub node: Option<NodeObject>,
    /// `None` where nobody published the node's description.
    pub report: Option<Report>,
    /// Why its Node, or one of the same name, cannot be read.
    pub node_problem: Option<String>,
    /// The same for its description.
    pub report_problem: Option<String>,
    /// What its pods request; without the pods that are asked about.
    pub used: Used,
    /// Nodes were read, and its own does not exist: its description was left behind, and its CPUs are nobody's.
    pub is_left_behind: bool,
}

/// What was read, by node.
#[derive(Debug)]
pub struct Cluster {
    pub members: Vec<Member>,
    /// Whether there were Nodes among the objects; without them labels, taints and requests are not known.
    pub has_nodes: bool,
    pub problems: Problems,
    /// How many objects or texts could not be read and do not say which node they describe.
    pub unreadable_without_name: u64,
    pub pods: BTreeMap<PodKey, PodObject>,
    /// The pods' namespaces and names by UID.
    by_uid: BTreeMap<String, PodKey>,
}

/// Which nodes a command is about.
#[derive(Debug, Default)]
pub struct Chosen<'a> {
    pub names: &'a [String],
    pub selector: Option<&'a Selector>,
    /// A pod whose requests do not count, because the question is where it could be.
    pub without: Option<&'a PodKey>,
}

/// The name of a node without its domain, as people call it; an IP address stays as it is.
fn without_domain(name: &str) -> &str {
    match name.split_once('.') {
        Some((host, _)) if !host.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(' ') => host,
        _ => name,
    }
}

impl Cluster {
    /// # Errors
    /// Nodes are chosen by labels and no Node was read, or one that is named does not exist.
    pub fn of(objects: Objects, chosen: &Chosen<'_>) -> Result<Self, Failure> {
        let Objects {
            mut nodes,
            mut reports,
            pods,
            problems,
            mut unreadable,
            ..
        } = objects;
        let has_nodes = !nodes.is_empty();
        if chosen.selector.is_some() && !has_nodes {
            let text = "-l needs Nodes, and none was read: their labels are not known";
            return Err(Failure::Other(text.to_owned()));
        }
        let unread = unreadable.nodes.keys().chain(unreadable.reports.keys());
        let names: BTreeSet<String> = nodes.keys().chain(reports.keys()).chain(unread).cloned().collect();
        let is_called = |wanted: &String, name: &String| wanted == name || wanted == without_domain(name);
        let is_missing = |wanted: &&String| !names.iter().any(|name| is_called(wanted, name));
        if let Some(missing) = chosen.names.iter().find(is_missing) {
            return Err(Failure::NoSuchObject(format!("there is no node {missing:?}")));
        }
        let mut used: BTreeMap<&str, Used> = BTreeMap::new();
        for (key, pod) in &pods {
            let counts = !pod.has_ended && chosen.without != Some(key);
            if let Some(node) = pod.node.as_deref().filter(|_| counts) {
                used.entry(node).or_default().add(&pod.requests);
            }
        }
        let is_chosen =
            |name: &String| chosen.names.is_empty() || chosen.names.iter().any(|wanted| is_called(wanted, name));
        let member = |name: String| {
            let (node, node_problem) = (nodes.remove(&name), unreadable.nodes.remove(&name));
            Member {
                is_left_behind: has_nodes && node.is_none() && node_problem.is_none(),
                node,
                report: reports.remove(&name),
                node_problem,
                report_problem: unreadable.reports.remove(&name),
                used: used.remove(name.as_str()).unwrap_or_default(),
                name,
            }
        };
        let mut members: Vec<Member> = names.into_iter().filter(is_chosen).map(member).collect();
        if let Some(selector) = chosen.selector {
            let matches = |node: &NodeObject| selector.matches(&node.labels);
            // A Node that cannot be read may have the labels.
            members.retain(|member| member.node_problem.is_some() || member.node.as_ref().is_some_and(matches));
        }
        Ok(Self {
            members,
            has_nodes,
            problems,
            unreadable_without_name: unreadable.without_name,
            by_uid: pods.iter().map(|(key, pod)| (pod.uid.clone(), key.clone())).collect(),
            pods,
        })
    }

    /// Namespace and name of a pod that a node's object names; empty where neither tells them.
    pub fn holder(&self, holder: &Holder) -> PodKey {
        let of_pod = self.pod(holder.pod.as_str()).map(|(key, _)| key.clone());
        let of_object = || {
            let name = holder.name.as_ref()?;
            Some((name.namespace().to_owned(), name.name().to_owned()))
        };
        of_pod.or_else(of_object).unwrap_or_default()
    }

    /// The pod with this UID.
    pub fn pod(&self, uid: &str) -> Option<(&PodKey, &PodObject)> {
        self.pods.get_key_value(self.by_uid.get(uid)?)
    }
}

impl Member {
    /// Who chooses its CPUs.
    pub fn chooser(&self) -> Chooser {
        match &self.report {
            Some(report) => Chooser::of(&report.stored),
            None if self.report_problem.is_some() => {
                Chooser::Nobody("its NodeResourceTopology cannot be read".to_owned())
            }
            None => Chooser::Nobody("it has no NodeResourceTopology".to_owned()),
        }
    }

    /// Why the Node is not Ready, if it is not.
    pub fn not_ready(&self) -> Option<&str> {
        self.node.as_ref()?.not_ready.as_deref()
    }

    /// Whether pods are kept from it until `kubectl uncordon`.
    pub fn is_cordoned(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.cordoned)
    }

    /// The reason that it published for which its CPUs must not be used.
    pub fn unusable(&self) -> Option<&str> {
        let state = self.report.as_ref()?.stored.state.as_deref()?;
        (state != "ready").then_some(state)
    }
}

/// `namespace/name` of a pod, or its UID where the name is not known.
pub(crate) fn called(namespace: &str, name: &str, uid: &str) -> String {
    match name {
        "" => uid.to_owned(),
        name => format!("{namespace}/{name}"),
    }
}

/// What `of` says of each, in their order, computed on all CPUs.
pub fn each<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let share = items.len().div_ceil(threads).max(1);
    let of = &of;
    std::thread::scope(|scope| {
        let worker = |chunk| scope.spawn(move || <[T]>::iter(chunk).map(of).collect::<Vec<R>>());
        let workers: Vec<_> = items.chunks(share).map(worker).collect();
        let mut all = Vec::with_capacity(items.len());
        for worker in workers {
            match worker.join() {
                Ok(part) => all.extend(part),
                // What one thread cannot do, no other can.
                Err(cause) => std::panic::resume_unwind(cause),
            }
        }
        all
    })
}
