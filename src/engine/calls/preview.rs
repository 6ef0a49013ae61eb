//! Preview: everything is read and planned, and no step is applied.

use stelia_api::{Error, ErrorKind, Reason, ReasonCode};
use stelia_decide::{Assessment, Derived, Instance, Whom};

use super::{Asker, Call, Reply};
use crate::engine::handle::Handle;
use crate::engine::pass::Preview;
use crate::engine::picture::Picture;
use crate::engine::state::EngineState;

struct PreviewCall {
    reply: Reply<Preview>,
}

impl Handle {
    /// What would be done now; nothing is changed.
    pub(crate) async fn preview(&self) -> Result<Preview, Error> {
        self.call(|reply| PreviewCall { reply }).await
    }
}

impl Call for PreviewCall {
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let preview = state.preview();
        state.finish(&asker, [self.reply], preview);
    }

    fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }
}

impl EngineState {
    /// Read everything and plan, without applying a step.
    fn preview(&mut self) -> Result<Preview, Error> {
        let policies = &self.settings.policies;
        let kubelet = self.picture.kubelet.clone();
        let picture = Picture::read(&self.system, &self.settings, kubelet);
        let mut snapshot = picture.map_err(|problem| ErrorKind::Failed.because(problem))?.snapshot;
        snapshot.unsettled.clone_from(&self.picture.snapshot.unsettled);
        snapshot.to_keep.clone_from(&self.picture.snapshot.to_keep);
        snapshot
            .unplug_overdue
            .clone_from(&self.picture.snapshot.unplug_overdue);
        let facts = Derived::of(&snapshot, policies);
        let assess = |instance: &Instance| Assessment::of(&snapshot, &facts, policies, instance);
        let degraded = snapshot.live().flat_map(|instance| {
            let pod = &instance.record.pod;
            let failures = self.retries.instances.failures(pod).iter();
            let failures = failures.map(|text| Reason::of(pod, ReasonCode::StepFailed, text));
            let reasons = assess(instance).degraded.into_iter().chain(failures);
            reasons
                .map(|reason| reason.naming(instance.pod_name.as_ref()))
                .map(|reason| (Whom::Instance(pod.clone()), reason))
                .collect::<Vec<_>>()
        });
        let kubelet = snapshot.kubelet.as_ref().err();
        let kubelet = kubelet.map(|problem| (Whom::Node, Reason::of_node(ReasonCode::KubeletUnusable, problem)));
        let shared = self.retries.shared.all_failures().chain(&self.picture.problems);
        let shared = shared.map(|text| (Whom::Node, Reason::of_node(ReasonCode::StepFailed, text)));
        Ok(Preview {
            steps: stelia_decide::plan(&snapshot, policies),
            degraded: kubelet.into_iter().chain(shared).chain(degraded).collect(),
        })
    }
}
