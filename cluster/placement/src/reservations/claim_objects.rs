//! What the claim objects say: one for each node, with what was promised there. Each is written with the version that it was
//! read with, so of two writers who do not know each other's claims one is refused.

use std::collections::HashSet;
use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::records::{Bound, Intent, PodRecord};
use super::{AttemptId, Moment, NodeName, Reservations, Rules, Ticket, Uid, Version};

/// A claim in a claim object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub pod: Uid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The bind that the claim is of; 0 if the pod is bound.
    pub attempt: AttemptId,
    /// The pod's version that its binding demands.
    pub version: Version,
    pub cpus: Option<CpuSet>,
}

/// The content that is to be written to a claim object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The version that the object must have; `None` if there must be no object.
    pub base: Option<Version>,
    pub claims: Vec<Claim>,
}

impl<R: Rules> Reservations<R> {
    /// A claim object was added or changed. Claims in it that were not known are another writer's, whose binding may come at any time:
    /// they hold their CPUs until the outcome is known. Returns whether there were any.
    pub fn claims_changed(&mut self, node: &NodeName, version: Version, claims: &[Claim], now: Moment) -> bool {
        let known = self.nodes.entry(node.clone()).or_default();
        if version <= known.claims_version {
            return false;
        }
        known.claims_version = version;
        let pods = known.pods.clone();
        let attempts: HashSet<AttemptId> = claims.iter().map(|claim| claim.attempt).collect();
        let mut has_foreign = false;
        for claim in claims {
            has_foreign |= self.add_foreign_claim(node, claim, now);
        }
        if has_foreign {
            self.invalidate_promises(node);
        }
        // What an earlier bind left, and the writer of this version knew to have ended.
        for pod in pods {
            self.drop_ended_attempts(node, pod, &attempts);
        }
        self.update_node(node);
        has_foreign
    }

    fn add_foreign_claim(&mut self, node: &NodeName, claim: &Claim, now: Moment) -> bool {
        let record = self.pods.entry(claim.pod).or_default();
        // The pod was read before the claim.
        let is_new = |bound: &&mut Bound| !bound.shown && !bound.ours && bound.node == *node;
        if let Some(bound) = record.bound.as_mut().filter(is_new) {
            bound.ours = true;
            record.cpus = promised(claim.attempt, claim.cpus.as_ref(), record.cpus.take());
            record.shown_as = None;
            return true;
        }
        let over = record.gone.is_some() || record.bound.is_some() || record.version > claim.version;
        if over || record.intents(node).any(|intent| intent.attempt == claim.attempt) {
            return false;
        }
        record.name = Some(claim.name.clone());
        record.intents.push(Intent {
            node: node.clone(),
            attempt: claim.attempt,
            open: false,
            version: claim.version,
            cpus: claim.cpus.clone(),
            since: now,
            foreign: None,
        });
        self.undecided.insert(claim.pod);
        self.add_to_node(claim.pod, node);
        true
    }

    fn drop_ended_attempts(&mut self, node: &NodeName, pod: Uid, written: &HashSet<AttemptId>) {
        let Some(record) = self.pods.get_mut(&pod) else { return };
        let before = record.intents.len();
        record
            .intents
            .retain(|intent| intent.node != *node || intent.open || written.contains(&intent.attempt));
        if record.intents.len() == before {
            return;
        }
        if !record.is_undecided() {
            self.undecided.remove(&pod);
        }
        self.remove_from_node(pod, node);
    }

    /// The claim object was deleted.
    pub fn claims_deleted(&mut self, node: &NodeName, version: Version) {
        if let Some(known) = self.nodes.get_mut(node).filter(|known| known.claims_version <= version) {
            known.claims_version = 0;
            self.update_node(node);
        }
    }

    /// A list of all claim objects, of that version: nodes that are not in it have none.
    pub fn claims_listed(&mut self, listed: &HashSet<NodeName>, version: Version) {
        for node in self.unlisted(listed, |known| known.claims_version) {
            self.claims_deleted(&node, version);
        }
    }

    /// The content for the node's claim object, with the ticket's claim in it. `None` if the promise was invalidated meanwhile, or has
    /// ended; the bind must be started again.
    pub fn rewrite(&self, ticket: &Ticket) -> Option<Rewrite> {
        let known = self.nodes.get(&ticket.node)?;
        if !self.is_open(ticket) || known.invalidations != ticket.invalidations {
            return None;
        }
        let records = known.pods.iter().filter_map(|pod| Some((*pod, self.pods.get(pod)?)));
        let claims = records.flat_map(|(pod, record)| claims_of(pod, record, &ticket.node));
        Some(Rewrite {
            base: Some(known.claims_version).filter(|version| *version != 0),
            claims: claims.collect(),
        })
    }

    /// The claim object was written.
    pub fn claims_written(&mut self, node: &NodeName, version: Version) {
        let known = self.nodes.entry(node.clone()).or_default();
        known.claims_version = known.claims_version.max(version);
    }
}

/// The CPUs that a bound pod was promised, by a claim and its annotation. The claim counts, because the author may change the annotation; but a claim from before
/// the bind may be of an attempt that failed, and that a later one replaced, which chose as many other CPUs.
pub(super) fn promised(attempt: AttemptId, claimed: Option<&CpuSet>, told: Option<CpuSet>) -> Option<CpuSet> {
    let later = |told: &CpuSet| attempt != 0 && claimed.is_some_and(|claimed| claimed.len() == told.len());
    told.filter(later).or(claimed.cloned())
}

/// The claims of a pod on a node. A pod that another scheduler bound has none.
fn claims_of<Q>(pod: Uid, record: &PodRecord<Q>, on: &str) -> Vec<Claim> {
    let claim = |attempt, version, cpus: &Option<CpuSet>| Claim {
        pod,
        name: record.name.clone().unwrap_or_default(),
        attempt,
        version,
        cpus: cpus.clone(),
    };
    let intents = record
        .intents(on)
        .map(|intent| claim(intent.attempt, intent.version, &intent.cpus));
    let bound = record.unseen().filter(|bound| bound.ours && &*bound.node == on);
    intents
        .chain(bound.map(|_| claim(0, record.version, &record.cpus)))
        .collect()
}
