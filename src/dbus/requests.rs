//! What the arguments of the Manager's calls stand for.

use stelia_api::{Error, ErrorKind};
use stelia_kubelet::PodUid;

use super::caller::Caller;
use super::manager::Options;
use super::options;
use crate::engine::{Handle, RebindRequest, ResizeRequest};

pub(super) fn rebind(scope: &str, deadline_s: u32, options: &Options) -> Result<RebindRequest, Error> {
    options::known(options, &["dry-run"])?;
    Ok(RebindRequest {
        scope: scope.to_owned(),
        deadline_s,
        dry_run: options::flag(options, "dry-run")?,
    })
}

pub(super) fn resize(pod_uid: &str, cpus: u32, options: &Options) -> Result<ResizeRequest, Error> {
    options::known(options, &["dry-run"])?;
    Ok(ResizeRequest {
        pod: PodUid::parse(pod_uid).map_err(ErrorKind::InvalidArgument.context("pod_uid"))?,
        cpus,
        dry_run: options::flag(options, "dry-run")?,
    })
}

pub(super) fn no_instance(pod: &str) -> Error {
    let shown: String = pod.chars().take(64).collect();
    ErrorKind::NoSuchInstance.because(format!("pod {shown:?} has no instance"))
}

/// The pod with an instance that a caller names, or its own.
pub(super) fn named(engine: &Handle, caller: &Caller, pod_uid: &str) -> Result<PodUid, Error> {
    if pod_uid.is_empty() {
        return caller
            .only
            .clone()
            .ok_or_else(|| ErrorKind::InvalidArgument.because("pod_uid is empty"));
    }
    let pod = PodUid::parse(pod_uid).map_err(ErrorKind::InvalidArgument.context("pod_uid"))?;
    // What a caller may not see answers as what does not exist.
    if caller.sees(&pod) && engine.view().instances.contains_key(&pod) {
        Ok(pod)
    } else {
        Err(no_instance(pod_uid))
    }
}
