//! Preemption: kube-scheduler has chosen victims by counting, and asks on which of these nodes their end makes room.

use std::collections::HashMap;

use super::{Answer, Placer, answer, reason};
use crate::cluster::{Reason, Verdict};
use crate::request::Request;
use crate::reservations::Uid;

impl Placer {
    /// What each of these nodes would do with the pod once these pods have left it.
    pub fn answers_without<'n>(
        &self,
        request: &Request,
        nodes: impl IntoIterator<Item = (&'n str, Vec<Uid>)>,
        mut told: impl FnMut(&'n str, Answer),
    ) {
        let now = self.now();
        let mut state = self.state();
        let number = state.number(request, now);
        let reservations = &mut state.reservations;
        for (name, victims) in nodes {
            let closed = reservations.available(name, now).err().and_then(reason);
            let gone: HashMap<_, _> = victims
                .into_iter()
                .map(|uid| (uid, reservations.asked(uid).map(|asked| asked.request)))
                .collect();
            let verdict = match reservations.rules_mut().cluster.without(name, number, &gone) {
                Ok(placement) => Verdict::Fits(placement.score.total),
                Err(refusal) => Verdict::Refused(Reason {
                    by: refusal.by,
                    name: refusal.name,
                }),
            };
            told(name, answer(closed, verdict, request.vm.is_some()));
        }
    }
}
