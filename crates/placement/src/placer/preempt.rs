//! Preemption: kube-scheduler has chosen victims by counting, and asks on which of these nodes their end makes room.

use std::collections::HashMap;

use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::{Emptied, Reason, Verdict};
use stelia_placement_rules::evaluate::Refusal;
use stelia_placement_rules::request::Request;
use stelia_reservations::Moment;

use super::{Answer, Placer, answer, reason};

/// Nodes that are evaluated at once, so that no other call waits for a question about all of them, and not all of them are in memory twice.
const NODES_PER_BATCH: usize = 256;

/// A node, why nothing is placed there, and what it is without its victims.
type Candidate<'n> = (&'n str, Option<&'static str>, Result<Emptied, Refusal>);

impl Placer {
    /// What each of these nodes would do with the pod once these pods have left it.
    pub fn answers_without<'n>(
        &self,
        request: &Request,
        nodes: impl IntoIterator<Item = (&'n str, Vec<Uid>)>,
        mut told: impl FnMut(&'n str, Answer),
    ) {
        let now = self.now();
        let nodes: Vec<(&'n str, Vec<Uid>)> = nodes.into_iter().collect();
        let has_vm = request.vm.is_some();
        for some in nodes.chunks(NODES_PER_BATCH) {
            for (name, closed, emptied) in self.emptied(request, some, now) {
                let verdict = match emptied.and_then(Emptied::evaluate) {
                    Ok(placement) => Verdict::Fits(placement.score.total),
                    Err(refusal) => Verdict::Refused(Reason {
                        by: refusal.by,
                        name: refusal.name,
                    }),
                };
                told(name, answer(closed, verdict, has_vm));
            }
        }
    }

    fn emptied<'n>(&self, request: &Request, nodes: &[(&'n str, Vec<Uid>)], now: Moment) -> Vec<Candidate<'n>> {
        let mut state = self.state();
        let number = state.number(request, now);
        let reservations = &mut state.reservations;
        let candidates = nodes.iter().map(|(name, victims)| {
            let closed = reservations.available(name, now).err().and_then(reason);
            let asked = |uid: &Uid| (*uid, reservations.asked(*uid).map(|asked| asked.request));
            let gone: HashMap<_, _> = victims.iter().map(asked).collect();
            let emptied = reservations.rules_mut().cluster.without(name, number, &gone);
            (*name, closed, emptied)
        });
        candidates.collect()
    }
}
