//! What the claim objects say: one for each node, with what was promised there. Each is written with the version that it was
//! read with, so of two writers who do not know each other's claims one is refused.

use std::collections::HashSet;
use std::sync::Arc;

use stelia_cpus::CpuSet;

use super::records::{Intent, Record};
use super::{Attempt, Moment, NodeName, Reservations, Rules, Ticket, Uid, Version};

/// A claim, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub pod: Uid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Whose it is; 0 where the pod is bound.
    pub attempt: Attempt,
    /// The pod's version that its binding demands.
    pub version: Version,
    pub cpus: Option<CpuSet>,
}

/// What a claim object is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The version that it must have; `None` where there must be none.
    pub base: Option<Version>,
    pub entries: Vec<Entry>,
}

impl<R: Rules> Reservations<R> {
    /// A claim object was added or changed. Claims in it that were not known are another writer's: its binding may come at any
    /// time, so they hold what they say until it is known better. Whether there were any.
    pub fn claims(&mut self, node: &NodeName, version: Version, entries: &[Entry], now: Moment) -> bool {
        let slot = self.nodes.entry(node.clone()).or_default();
        if version <= slot.claims {
            return false;
        }
        slot.claims = version;
        let here = slot.pods.clone();
        let attempts: HashSet<Attempt> = entries.iter().map(|entry| entry.attempt).collect();
        let mut news = false;
        for entry in entries {
            news |= self.learn(node, entry, now);
        }
        if news {
            self.surprise(node);
        }
        // What an earlier bind left, and the writer of this version knew to be over.
        for pod in here {
            self.forget(node, pod, &attempts);
        }
        self.touch(node);
        news
    }

    fn learn(&mut self, node: &NodeName, entry: &Entry, now: Moment) -> bool {
        let record = self.pods.entry(entry.pod).or_default();
        let over = record.gone.is_some() || record.bound.is_some() || record.version > entry.version;
        if over || record.intents(node).any(|intent| intent.attempt == entry.attempt) {
            return false;
        }
        record.name = Some(entry.name.clone());
        record.intents.push(Intent {
            node: node.clone(),
            attempt: entry.attempt,
            open: false,
            version: entry.version,
            cpus: entry.cpus.clone(),
            since: now,
            foreign: None,
        });
        self.undecided.insert(entry.pod);
        self.enter(entry.pod, node);
        true
    }

    fn forget(&mut self, node: &NodeName, pod: Uid, written: &HashSet<Attempt>) {
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
        self.leave(pod, node);
    }

    /// The claim object was deleted.
    pub fn claims_gone(&mut self, node: &NodeName, version: Version) {
        if let Some(slot) = self.nodes.get_mut(node).filter(|slot| slot.claims <= version) {
            slot.claims = 0;
            self.touch(node);
        }
    }

    /// A list of all claim objects, of that version: nodes that are not in it have none.
    pub fn only_claims(&mut self, listed: &HashSet<NodeName>, version: Version) {
        let nodes = self
            .nodes
            .iter()
            .filter(|(node, slot)| slot.claims != 0 && !listed.contains(*node));
        let gone: Vec<NodeName> = nodes.map(|(node, _)| node.clone()).collect();
        for node in gone {
            self.claims_gone(&node, version);
        }
    }

    /// What the node's claim object is to say, with the ticket's claim in it. `None`: the promise was made without knowing
    /// claims that are known now, or does not hold any more; begin anew.
    pub fn rewrite(&self, ticket: &Ticket) -> Option<Rewrite> {
        let slot = self.nodes.get(&ticket.node)?;
        if !self.is_open(ticket) || slot.surprises != ticket.surprises {
            return None;
        }
        let records = slot.pods.iter().filter_map(|pod| Some((*pod, self.pods.get(pod)?)));
        let entries = records.flat_map(|(pod, record)| entries(pod, record, &ticket.node));
        Some(Rewrite {
            base: Some(slot.claims).filter(|version| *version != 0),
            entries: entries.collect(),
        })
    }

    /// The claim object was written.
    pub fn wrote(&mut self, node: &NodeName, version: Version) {
        let slot = self.nodes.entry(node.clone()).or_default();
        slot.claims = slot.claims.max(version);
    }
}

/// What a pod holds there, without what others bound: that is nobody's claim.
fn entries<Q>(pod: Uid, record: &Record<Q>, on: &str) -> Vec<Entry> {
    let entry = |attempt, version, cpus: &Option<CpuSet>| Entry {
        pod,
        name: record.name.clone().unwrap_or_default(),
        attempt,
        version,
        cpus: cpus.clone(),
    };
    let intents = record
        .intents(on)
        .map(|intent| entry(intent.attempt, intent.version, &intent.cpus));
    let bound = record.unseen().filter(|bound| bound.ours && &*bound.node == on);
    intents
        .chain(bound.map(|_| entry(0, record.version, &record.cpus)))
        .collect()
}
