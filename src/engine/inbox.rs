//! The queue of calls: each pod in turn, one call of a pod at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stelia_kubelet::PodUid;

use super::calls::{Asker, Call};

/// Calls that are not begun yet.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: BTreeMap<Asker, VecDeque<Box<dyn Call>>>,
    /// Whose call is begun next.
    order: VecDeque<Asker>,
    /// Pods of which a call is under way.
    busy: BTreeSet<PodUid>,
    /// Registrations to be tried again, because what they waited for has changed.
    again: VecDeque<(Asker, Box<dyn Call>)>,
}

impl Inbox {
    /// Queue a call, or let it share the answer of the same caller's queued call for the same thing.
    pub(super) fn push(&mut self, asker: Asker, call: Box<dyn Call>) {
        let queue = self.waiting.entry(asker.clone()).or_default();
        let mut call = call;
        if queue.iter_mut().any(|queued| queued.join(&mut *call)) {
            return;
        }
        queue.push_back(call);
        let waits = asker.as_ref().is_some_and(|pod| self.busy.contains(pod));
        if !waits && !self.order.contains(&asker) {
            self.order.push_back(asker);
        }
    }

    /// The next call to begin, of a pod that is not held back. No other call of its pod is begun before [`Self::release`]. Calls
    /// whose callers left are dropped.
    pub(super) fn next(&mut self, is_held_back: impl Fn(&PodUid) -> bool) -> Option<(Asker, Box<dyn Call>)> {
        let may_begin = |asker: &Asker| !asker.as_ref().is_some_and(&is_held_back);
        while let Some(position) = self.order.iter().position(may_begin) {
            let asker = self.order.remove(position)?;
            let Some(queue) = self.waiting.get_mut(&asker) else {
                continue;
            };
            let call = loop {
                match queue.pop_front() {
                    Some(call) if call.is_given_up() => {}
                    other => break other,
                }
            };
            if queue.is_empty() {
                self.waiting.remove(&asker);
            }
            let Some(call) = call else { continue };
            match &asker {
                Some(pod) => drop(self.busy.insert(pod.clone())),
                None if self.waiting.contains_key(&asker) => self.order.push_back(None),
                None => {}
            }
            return Some((asker, call));
        }
        None
    }

    /// Whether a call waits for its pod's turn.
    pub(super) fn has_waiting(&self) -> bool {
        !self.order.is_empty()
    }

    /// A registration that waited is to be tried again.
    pub(super) fn again(&mut self, asker: Asker, call: Box<dyn Call>) {
        self.again.push_back((asker, call));
    }

    /// The next registration to try again.
    pub(super) fn next_again(&mut self) -> Option<(Asker, Box<dyn Call>)> {
        self.again.pop_front()
    }

    /// A call of the pod has been answered.
    pub(super) fn release(&mut self, asker: &Asker) {
        if let Some(pod) = asker
            && self.busy.remove(pod)
            && self.waiting.contains_key(asker)
        {
            self.order.push_back(asker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use tokio::sync::oneshot;

    use super::super::calls::{Reply, all_closed};
    use super::super::state::EngineState;
    use super::*;

    /// A call that shares its answer with calls of the same number.
    struct FakeCall {
        number: u32,
        replies: Vec<Reply<()>>,
    }

    impl Call for FakeCall {
        fn begin(self: Box<Self>, _: &mut EngineState, _: Asker) {}

        fn is_given_up(&self) -> bool {
            all_closed(&self.replies)
        }

        fn join(&mut self, other: &mut (dyn Call + 'static)) -> bool {
            let other: &mut dyn Any = other;
            let same = other.downcast_mut::<Self>().filter(|other| other.number == self.number);
            same.map(|same| self.replies.append(&mut same.replies)).is_some()
        }
    }

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")).unwrap()
    }

    fn call(number: u32) -> (Box<dyn Call>, oneshot::Receiver<Result<(), stelia_api::Error>>) {
        let (reply, answer) = oneshot::channel();
        let replies = vec![reply];
        (Box::new(FakeCall { number, replies }), answer)
    }

    fn replies(call: Box<dyn Call>) -> usize {
        let any: Box<dyn Any> = call;
        any.downcast::<FakeCall>().unwrap().replies.len()
    }

    #[test]
    fn every_pod_has_its_turn_and_equal_calls_are_one() {
        let mut inbox = Inbox::default();
        let mut answers = Vec::new();
        for number in [1, 1, 1, 2, 1, 3] {
            let (queued, answer) = call(number);
            inbox.push(Some(pod(number)), queued);
            answers.push(answer);
        }
        let mut order = Vec::new();
        while let Some((asker, next)) = inbox.next(|_| false) {
            order.push((asker.unwrap(), replies(next)));
        }
        assert_eq!(order, [(pod(1), 4), (pod(2), 1), (pod(3), 1)]);
    }

    #[test]
    fn a_pods_next_call_waits_for_its_last() {
        let mut inbox = Inbox::default();
        let one = Some(pod(1));
        let (first, _answer) = call(1);
        inbox.push(one.clone(), first);
        assert!(inbox.next(|_| false).is_some());
        let (second, _answer) = call(1);
        inbox.push(one.clone(), second);
        assert!(inbox.next(|_| false).is_none());
        inbox.release(&one);
        assert!(inbox.next(|_| false).is_some());
        inbox.release(&one);
        assert!(inbox.next(|_| false).is_none());
    }

    #[test]
    fn a_caller_that_left_takes_its_call_with_it() {
        let mut inbox = Inbox::default();
        let (queued, answer) = call(1);
        inbox.push(Some(pod(1)), queued);
        drop(answer);
        inbox.push(None, call(2).0);
        assert!(inbox.next(|_| false).is_none());
    }

    #[test]
    fn a_pod_that_is_held_back_stands_behind_the_others() {
        let mut inbox = Inbox::default();
        let mut answers = Vec::new();
        for number in [1, 2] {
            let (queued, answer) = call(number);
            inbox.push(Some(pod(number)), queued);
            answers.push(answer);
        }
        let held_back = |one: &PodUid| *one == pod(1);
        assert_eq!(inbox.next(held_back).unwrap().0, Some(pod(2)));
        assert!(inbox.next(held_back).is_none() && inbox.has_waiting());
        assert_eq!(inbox.next(|_| false).unwrap().0, Some(pod(1)));
    }
}
