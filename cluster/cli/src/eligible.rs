//! What the scheduler asks of a node besides the CPUs' places: labels, taints, and what is left of its allocatable resources. A
//! plain check of these, not a scheduler: other pods' affinity, volumes and spreading are ignored.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use kube::core::{Expression, SelectorExt};
use kubelet_planner::Amounts;
use stelia_cpus::quantity::Quantity;
use stelia_cpus::quantity::bytes::of_bytes;

use crate::objects::{NodeObject, Taint};
use crate::pod_request::PodRequest;
use crate::reasons::Refusal;

/// What the pods that are bound to a node request together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    pub pods: u64,
    amounts: BTreeMap<String, u64>,
}

impl Used {
    pub fn add(&mut self, requests: &Amounts) {
        self.pods += 1;
        for (name, amount) in named(requests) {
            let sum = self.amounts.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
}

/// The amounts by the names of resources; `cpu` in thousandths.
fn named(amounts: &Amounts) -> impl Iterator<Item = (String, u64)> {
    let cpu = amounts.milli_cpus.map(|milli| ("cpu".to_owned(), milli));
    let memory = amounts.memory.map(|bytes| ("memory".to_owned(), bytes));
    let pages = amounts.huge_pages.iter();
    let pages = pages.map(|(size, bytes)| (format!("hugepages-{}", of_bytes(*size)), *bytes));
    let devices = amounts.devices.iter().map(|(name, count)| (name.clone(), *count));
    cpu.into_iter().chain(memory).chain(pages).chain(devices)
}

/// Every reason of labels, taints and names why the scheduler would not bind the pod to this node.
pub fn rules(pod_request: &PodRequest, name: &str, node: &NodeObject) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut add = |what: String, detail: &str| refusals.push(Refusal::new(what, detail));
    let wanted = pod_request.spec.node_name.as_deref();
    let wanted = wanted.filter(|wanted| pod_request.key.is_none() && !wanted.is_empty() && *wanted != name);
    if let Some(wanted) = wanted {
        add("spec.nodeName names another node".to_owned(), wanted);
    }
    let differs = |(key, value): &(&String, &String)| node.labels.get(*key) != Some(*value);
    if let Some((key, value)) = pod_request.spec.node_selector.iter().flatten().find(differs) {
        let what = "it lacks the labels of spec.nodeSelector".to_owned();
        add(what, &format!("{key}={value}"));
    }
    let affinity = pod_request.spec.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    if let Some(required) = required {
        let matches = |term: &NodeSelectorTerm| matches_term(term, name, &node.labels);
        if !required.node_selector_terms.iter().any(matches) {
            add("the pod's required node affinity does not match it".to_owned(), "");
        }
    }
    let tolerations = pod_request.spec.tolerations.as_deref().unwrap_or_default();
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    // The node controller adds this taint to a cordoned node, a moment later.
    let cordoned = node.cordoned && !node.taints.iter().any(|taint| taint.key == cordon.key);
    let taints = node.taints.iter().chain(cordoned.then_some(&cordon));
    for taint in taints.filter(|taint| is_in_the_way(taint)) {
        if !tolerations.iter().any(|toleration| tolerates(toleration, taint)) {
            add(format!("taint {} is not tolerated", taint_words(taint)), "");
        }
    }
    refusals
}

/// Every resource that the node has too little of for more pods.
pub fn requests(requests: &Amounts, node: &NodeObject, used: &Used) -> Vec<Refusal> {
    let short = named(requests).filter_map(|(resource, wanted)| {
        let left = left(node, used, &resource);
        let [asked, rest] = [wanted, left].map(|amount| words(&resource, amount));
        (wanted > left).then(|| Refusal {
            detail: format!("{asked} requested, {rest} left"),
            ..too_little(&resource)
        })
    });
    let pods = (pods_left(node, used) == 0).then(|| too_little("pods"));
    short.chain(pods).collect()
}

/// What stops a pod where a resource runs out.
pub fn too_little(resource: &str) -> Refusal {
    let what = match resource {
        "pods" => "it has as many pods as it may".to_owned(),
        resource => format!("too little allocatable {resource}"),
    };
    Refusal::new(what, "")
}

/// How many pods with these requests the node has room for, whatever the CPUs' places, and what runs out first.
pub fn fit(requests: &Amounts, node: &NodeObject, used: &Used) -> (u64, String) {
    let resources = named(requests).filter(|(_, wanted)| *wanted > 0);
    let fits = resources.map(|(resource, wanted)| (left(node, used, &resource) / wanted, resource));
    let pods = (pods_left(node, used), "pods".to_owned());
    fits.chain([pods]).min().unwrap_or_default()
}

/// What is left of a resource; `cpu` in thousandths. A node that does not say what it has of one has none of it.
fn left(node: &NodeObject, used: &Used, resource: &str) -> u64 {
    let all = node.allocatable.get(resource).copied().unwrap_or_default();
    let all = match resource {
        "cpu" => all.milli(),
        _ => all.value(),
    };
    all.saturating_sub(used.amounts.get(resource).copied().unwrap_or(0))
}

fn pods_left(node: &NodeObject, used: &Used) -> u64 {
    let most = node.allocatable.get("pods").copied().map(Quantity::value);
    most.map_or(u64::MAX, |most| most.saturating_sub(used.pods))
}

fn words(resource: &str, amount: u64) -> String {
    match resource {
        "cpu" if amount.is_multiple_of(1000) => (amount / 1000).to_string(),
        "cpu" => format!("{amount}m"),
        "memory" => of_bytes(amount),
        resource if resource.starts_with("hugepages-") => of_bytes(amount),
        _ => amount.to_string(),
    }
}

/// A taint keeps a pod from being bound: `PreferNoSchedule` does not.
fn is_in_the_way(taint: &Taint) -> bool {
    ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str())
}

fn taint_words(taint: &Taint) -> String {
    match taint.value.as_deref() {
        Some(value) if !value.is_empty() => format!("{}={value}:{}", taint.key, taint.effect),
        _ => format!("{}:{}", taint.key, taint.effect),
    }
}

/// `ToleratesTaint` (`pkg/apis/core`, toleration.go).
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    let [key, effect, value] = [&toleration.key, &toleration.effect, &toleration.value].map(given);
    let fits = (effect.is_empty() || effect == taint.effect) && (key.is_empty() || key == taint.key);
    match given(&toleration.operator).as_str() {
        "" | "Equal" => fits && !key.is_empty() && value == taint.value.clone().unwrap_or_default(),
        "Exists" => fits,
        _ => false,
    }
}

/// Whether all requirements of a term hold; one without any matches nothing.
fn matches_term(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let fields = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
    let (by_labels, by_fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
    let (by_labels, by_fields) = (by_labels.unwrap_or_default(), by_fields.unwrap_or_default());
    let any = !by_labels.is_empty() || !by_fields.is_empty();
    any && by_labels.iter().all(|one| holds(one, labels)) && by_fields.iter().all(|one| holds(one, &fields))
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let key = requirement.key.clone();
    let values = requirement.values.clone().unwrap_or_default();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let both = || Some((number(labels.get(&key))?, number(values.first())?));
    match requirement.operator.as_str() {
        "In" => Expression::In(key, values.into_iter().collect()).matches(labels),
        "NotIn" => Expression::NotIn(key, values.into_iter().collect()).matches(labels),
        "Exists" => Expression::Exists(key).matches(labels),
        "DoesNotExist" => Expression::DoesNotExist(key).matches(labels),
        "Gt" => both().is_some_and(|(own, bound)| own > bound),
        "Lt" => both().is_some_and(|(own, bound)| own < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
