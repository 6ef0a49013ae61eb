//! Rebind: a job is begun that moves running VMs to better CPUs (`rebind_job`), or its moves are listed.

use std::time::{Duration, Instant};

use stelia_api::{Error, ErrorKind};
use stelia_decide::rebind;
use stelia_decide::rebind::RebindScope;
use stelia_kernel::clock::now_us;
use stelia_kubelet::PodUid;
use stelia_model as model;

use super::{Asker, Call, Reply, no_instance};
use crate::engine::handle::Handle;
use crate::engine::jobs::job_move;
use crate::engine::rebind_job::DEFAULT_DEADLINE;
use crate::engine::state::EngineState;

/// Jobs that are remembered.
const MAX_JOBS: usize = 16;
/// The longest deadline, seconds.
const MAX_DEADLINE_S: u32 = 86_400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebindRequest {
    /// `node`, or a pod's UID.
    pub scope: String,
    /// Seconds; 0 for the default.
    pub deadline_s: u32,
    /// List the moves without making them.
    pub dry_run: bool,
}

/// What Rebind answers: the job's number, none for a dry run; and the moves that are planned.
pub type RebindAnswer = (Option<u32>, Vec<model::JobMove>);

struct RebindCall {
    request: RebindRequest,
    reply: Reply<RebindAnswer>,
}

impl Handle {
    /// Begin a rebind job, or list the moves it would make.
    ///
    /// # Errors
    /// The [`Error`]; nothing has begun then.
    pub(crate) async fn rebind(&self, request: RebindRequest) -> Result<RebindAnswer, Error> {
        self.call(|reply| RebindCall { request, reply }).await
    }
}

impl Call for RebindCall {
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let planned = state.rebind(&self.request);
        state.finish(&asker, [self.reply], planned);
    }

    fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }
}

impl EngineState {
    /// Begin a job, or list the moves it would make.
    fn rebind(&mut self, request: &RebindRequest) -> Result<RebindAnswer, Error> {
        let scope = match request.scope.as_str() {
            "" | "node" => RebindScope::Node,
            text => RebindScope::Pod(PodUid::parse(text).map_err(|cause| {
                ErrorKind::InvalidArgument.because(format!(
                    "scope is \"node\" or the UID of a pod with an instance: {cause}"
                ))
            })?),
        };
        if request.deadline_s > MAX_DEADLINE_S {
            let text = format!("the deadline is {} s: at most {MAX_DEADLINE_S}", request.deadline_s);
            return Err(ErrorKind::InvalidArgument.because(text));
        }
        let snapshot = &self.picture.snapshot;
        if let RebindScope::Pod(pod) = &scope {
            self.picture.find(pod).ok_or_else(|| no_instance(pod))?;
        }
        if rebind::is_up_to_kubelet(snapshot) {
            return Err(ErrorKind::InvalidArgument.because(
                "kubelet chooses the CPUs of this node's VMs: a VM gets others only when its pod is recreated",
            ));
        }
        let moves = rebind::all(snapshot, &self.settings.policies, &scope);
        let planned = moves.iter().map(job_move).collect();
        if request.dry_run {
            return Ok((None, planned));
        }
        if self.jobs.is_running() {
            return Err(ErrorKind::Busy.because("a rebind job runs already"));
        }
        let rest = self.settings.rebind_interval;
        if let Some(since) = self
            .jobs
            .began
            .map(|began| began.elapsed())
            .filter(|since| *since < rest)
        {
            let text = format!(
                "the last rebind job began {} s ago: one in {} s (rebind-interval-s)",
                since.as_secs(),
                rest.as_secs()
            );
            return Err(ErrorKind::Busy.because(text));
        }
        let deadline = match request.deadline_s {
            0 => DEFAULT_DEADLINE,
            seconds => Duration::from_secs(seconds.into()),
        };
        let id = self
            .jobs
            .list
            .iter()
            .map(|job| job.id)
            .max()
            .unwrap_or(0)
            .wrapping_add(1);
        self.jobs.list.push(model::Job {
            id,
            scope: match &scope {
                RebindScope::Node => "node".to_owned(),
                RebindScope::Pod(pod) => pod.to_string(),
            },
            phase: model::JobPhase::Pending,
            reason: String::new(),
            moves: Vec::new(),
            began_us: now_us(),
            ended_us: 0,
        });
        let superfluous = self.jobs.list.len().saturating_sub(MAX_JOBS);
        self.jobs.list.drain(..superfluous);
        if let Err(refusal) = self.record_job() {
            self.jobs.list.pop();
            return Err(refusal);
        }
        self.jobs.running = Some((scope, Instant::now() + deadline));
        self.jobs.began = Some(Instant::now());
        self.view_writer.show_jobs(self.jobs.list.clone());
        Ok((Some(id), planned))
    }
}
