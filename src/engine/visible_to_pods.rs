//! What a pod may see. Everything that is sent to a pod is restricted here: the view of a [`Handle`](super::Handle) on behalf
//! of a pod, the changes of an instance it follows, the refusal of its call.
//!
//! What counts is the pod that a value is recorded for, never its text: a pod sees nothing of other pods, and of the
//! node general texts ([`ReasonCode::in_general`](stelia_api::ReasonCode::in_general),
//! [`ErrorKind::says`](stelia_api::ErrorKind::says)).

use std::sync::Arc;

use stelia_api::{Error, reason};
use stelia_kubelet::PodUid;
use stelia_model as model;

use super::PassReport;

/// A value of which a pod may see a part.
pub(crate) trait Restrict: Sized {
    /// The part that this pod may see.
    fn visible_to(self, pod: &PodUid) -> Self;
}

/// Whole for the operator (`None`), restricted for a pod.
pub(super) fn restricted<T: Restrict>(value: T, reader: Option<&PodUid>) -> T {
    match reader {
        None => value,
        Some(pod) => value.visible_to(pod),
    }
}

impl Restrict for Error {
    fn visible_to(self, pod: &PodUid) -> Self {
        Self::visible_to(self, pod)
    }
}

/// The pod's own instance; it is copied only if a reason must be restricted.
impl Restrict for Option<Arc<model::Instance>> {
    fn visible_to(self, pod: &PodUid) -> Self {
        let instance = self.filter(|instance| instance.pod == *pod)?;
        let own = |reason: &stelia_api::Reason| reason.pod.as_ref() == Some(pod);
        if instance.degraded.iter().all(own) {
            return Some(instance);
        }
        Some(Arc::new(model::Instance {
            degraded: reason::visible_to(&instance.degraded, pod),
            ..(*instance).clone()
        }))
    }
}

/// A view with the pod's own instance and nothing else of the node.
impl Restrict for Arc<model::Node> {
    fn visible_to(self, pod: &PodUid) -> Self {
        let own = self.instances.get(pod).cloned().visible_to(pod);
        Self::new(model::Node {
            instances: own.map(|instance| (pod.clone(), instance)).into_iter().collect(),
            ..model::Node::default()
        })
    }
}

/// The whole report on its own instance; of any other report nothing.
impl Restrict for PassReport {
    fn visible_to(self, pod: &PodUid) -> Self {
        if self.whom.pod() != Some(pod) {
            return Self::default();
        }
        let reasons: Vec<_> = self.degraded.into_iter().map(|(_, reason)| reason).collect();
        let visible = reason::visible_to(&reasons, pod).into_iter();
        Self {
            degraded: visible.map(|reason| (self.whom.clone(), reason)).collect(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::{Reason, ReasonCode};
    use stelia_decide::Whom;

    use super::*;
    use crate::engine::pass::Numbers;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn instance(number: u32, degraded: Vec<Reason>) -> Arc<model::Instance> {
        Arc::new(model::Instance {
            degraded,
            ..crate::engine::registered(pod(number))
        })
    }

    #[test]
    fn a_pod_sees_of_the_node_its_own_instance_and_no_number() {
        let offline = Reason::of(&pod(1), ReasonCode::CpusOffline, "CPUs 2 are offline");
        let mut view = model::Node {
            kubelet_problem: Some("pod 2".to_owned()),
            ..model::Node::default()
        };
        view.counters.drift_found = 7;
        view.instances = [(pod(1), instance(1, vec![offline])), (pod(2), instance(2, vec![]))].into();
        let view = Arc::new(view);
        assert!(Arc::ptr_eq(&restricted(view.clone(), None), &view));
        let visible = restricted(view.clone(), Some(&pod(1)));
        let only = model::Node {
            instances: [(pod(1), view.instances[&pod(1)].clone())].into(),
            ..model::Node::default()
        };
        assert_eq!(*visible, only);
        assert!(
            Arc::ptr_eq(&visible.instances[&pod(1)], &view.instances[&pod(1)]),
            "it was copied"
        );
        assert_eq!(*restricted(view, Some(&pod(3))), model::Node::default());
    }

    #[test]
    fn reasons_that_belong_to_another_pod_have_general_texts() {
        let evicted = Reason::of(&pod(2), ReasonCode::Evicted, "kubelet gave the CPUs 2-3 to pod 2");
        let visible = restricted(Some(instance(1, vec![evicted])), Some(&pod(1))).unwrap();
        assert_eq!(visible.degraded[0].text, ReasonCode::Evicted.in_general().unwrap());
        assert_eq!(restricted(Some(instance(2, vec![])), Some(&pod(1))), None);
    }

    #[test]
    fn a_report_of_the_node_or_of_another_pod_says_nothing() {
        let report = |whom: Whom| PassReport {
            whom,
            did: Numbers {
                steps: 4,
                ..Numbers::default()
            },
            degraded: vec![(
                Whom::Instance(pod(2)),
                Reason::of(&pod(2), ReasonCode::StepFailed, "write"),
            )],
            ..PassReport::default()
        };
        let second = || Whom::Instance(pod(2));
        for whom in [Whom::Node, second()] {
            assert_eq!(restricted(report(whom), Some(&pod(1))), PassReport::default());
        }
        assert_eq!(restricted(report(second()), Some(&pod(2))), report(second()));
    }
}
