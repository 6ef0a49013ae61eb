//! What nodes answer.

use std::collections::HashMap;

pub use super::reasons::Reason;
use super::requests::RequestId;
use super::states::Cell;
use super::{Cluster, Known, Slot};
use crate::evaluate::{By, Placement, Refusal, Standing, evaluate};
use crate::node::{NodeError, Uid};
use crate::request::Shared;

/// A node's answer in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has room; the score's total.
    Fits(u16),
    Refused(Reason),
}

pub(super) fn no_object() -> Refusal {
    let text = "the node has no NodeResourceTopology of profile stelia";
    Refusal::new(By::Scheduler, "NoObject", text)
}

pub(super) fn forgotten() -> Refusal {
    Refusal::new(
        By::Scheduler,
        "RequestForgotten",
        "too many other requests were asked since",
    )
}

fn unusable(cause: &NodeError) -> Refusal {
    Refusal::new(By::Scheduler, cause.name(), cause.to_string())
}

impl Cluster {
    /// What each of these nodes would do, in their order. Nothing is allocated for a node whose state was asked before.
    pub fn verdicts<'n>(
        &mut self,
        request: RequestId,
        names: impl IntoIterator<Item = &'n str>,
        mut told: impl FnMut(&'n str, Verdict),
    ) {
        let known = self.requests.shared(request).is_some();
        for name in names {
            if !known {
                told(name, self.refused(&forgotten()));
                continue;
            }
            let at = self.names.get(name).copied();
            let verdict = match at {
                Some(at) => self.verdict(at, request),
                None => self.refused(&no_object()),
            };
            told(name, verdict);
        }
    }

    /// What a node would do, in full, evaluated anew.
    ///
    /// # Errors
    /// Why it would refuse.
    pub fn explain(&mut self, name: &str, request: RequestId) -> Result<Placement, Refusal> {
        self.placement(name, request).map(|(_, placement)| placement)
    }

    /// What a node would do once these pods have left it, and no others; with what each of them asked for, as far as that is known. A pod that the node's
    /// object does not show, and that is not on its way there, gives nothing back.
    ///
    /// # Errors
    /// Why it would refuse all the same.
    pub fn without(
        &mut self,
        name: &str,
        request: RequestId,
        gone: &HashMap<Uid, Option<Shared>>,
    ) -> Result<Placement, Refusal> {
        let (at, request) = self.question(name, request)?;
        let (shape, standing) = self.states.of(self.state(at)).ok_or_else(no_object)?;
        let mut published = standing.published.clone();
        for tenant in self.tenants(name) {
            if let Some(asked) = gone.get(&tenant.uid) {
                let pod = asked.as_ref().map(|asked| &asked.0.pod);
                published = published.freed(shape, &tenant.cpus, pod);
            }
        }
        let coming = self.nodes.get(at).into_iter().flat_map(|slot| &slot.coming);
        let stay = coming.filter(|(uid, _)| !gone.contains_key(uid));
        let arrivals = stay.map(|(_, arrival)| arrival.clone()).collect();
        let (standing, _) = Standing::new(shape, published, arrivals);
        evaluate(shape, &standing, &request.0, &self.weights)
    }

    pub(super) fn placement(&mut self, name: &str, request: RequestId) -> Result<(usize, Placement), Refusal> {
        let (at, request) = self.question(name, request)?;
        let (shape, standing) = self.states.of(self.state(at)).ok_or_else(no_object)?;
        Ok((at, evaluate(shape, standing, &request.0, &self.weights)?))
    }

    /// The place of a node that can be asked, and the request.
    fn question(&mut self, name: &str, request: RequestId) -> Result<(usize, Shared), Refusal> {
        let at = *self.names.get(name).ok_or_else(no_object)?;
        let request = self.requests.shared(request).ok_or_else(forgotten)?;
        match self.nodes.get(at).map(|slot| &slot.known) {
            Some(Ok(_)) => Ok((at, request)),
            Some(Err(cause)) => Err(unusable(cause)),
            None => Err(no_object()),
        }
    }

    fn refused(&self, refusal: &Refusal) -> Verdict {
        Verdict::Refused(Reason {
            by: refusal.by,
            name: refusal.name,
        })
    }

    fn verdict(&mut self, at: usize, request: RequestId) -> Verdict {
        let state = match self.nodes.get(at) {
            Some(Slot {
                known: Ok(Known { state, .. }),
                ..
            }) => *state,
            Some(Slot { known: Err(cause), .. }) => {
                return Verdict::Refused(Reason {
                    by: By::Scheduler,
                    name: cause.name(),
                });
            }
            None => return self.refused(&no_object()),
        };
        let cell = self.states.cell(state, request);
        let answer = match cell.answer() {
            Some(answer) => answer,
            None => {
                let (Some(asked), Some((shape, standing))) =
                    (self.requests.shared(request), self.states.of(Some(state)))
                else {
                    return self.refused(&forgotten());
                };
                let answer = evaluate(shape, standing, &asked.0, &self.weights);
                let answer = match answer {
                    Ok(placement) => Ok(placement.score.total),
                    Err(refusal) => Err(self.reasons.number(&refusal)),
                };
                let cell = answer.map_or_else(Cell::refused, Cell::fits);
                self.states.set(state, request, cell);
                answer
            }
        };
        match answer {
            Ok(total) => Verdict::Fits(total),
            Err(number) => match self.reasons.get(number) {
                Some(reason) => Verdict::Refused(reason),
                None => self.refused(&forgotten()),
            },
        }
    }
}
