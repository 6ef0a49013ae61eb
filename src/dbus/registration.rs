//! RegisterInstance: the options are parsed and the call is passed to the engine.

use stelia_api::{Error, ErrorKind};
use stelia_decide::admission::Claim;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::PodUid;
use zbus::{DBusError as _, Variant};

use super::caller::{Caller, EntryPoint};
use super::manager::Options;
use super::options;
use crate::engine::{Handle, REGISTRATION_TIMEOUT, RegisterRequest};
use crate::journal::{self, JournalPod, about};

/// Returns the pod that has an instance now, and the instance's scope.
pub(super) async fn register(
    engine: &Handle,
    entry_point: &EntryPoint,
    caller: &Caller,
    pod_uid: &str,
    cpuset: &str,
    options: &Options,
) -> Result<(PodUid, CgroupPath), Error> {
    let (request, quiet, isolation) = options::registration(options)?;
    let anchor = options::descriptor(options, "anchor")?;
    let origin = origin(caller, options)?;
    let request = RegisterRequest {
        claim: Claim {
            pod: pod_uid.to_owned(),
            cpuset: cpuset.to_owned(),
            request,
            quiet,
            isolation,
        },
        caller: entry_point.peer(engine)?,
        origin,
        anchor,
        timeout: REGISTRATION_TIMEOUT,
        adopting: None,
    };
    engine.register(request).await.inspect_err(|error| {
        let text = error.to_string();
        let name = caller.pod_name(engine);
        let pod = caller
            .only
            .as_ref()
            .map(|pod| JournalPod::new(pod.as_str(), name.as_ref()));
        about!(
            warn,
            journal::REGISTRATION_REFUSED,
            pod,
            STELIA_ERROR = error.name().as_str(),
            STELIA_REASON = text,
            "{}registration refused: {text}",
            journal::of(pod)
        );
    })
}

/// Where the container's cgroup is, when the caller says so.
fn origin(caller: &Caller, options: &Options) -> Result<Option<CgroupPath>, Error> {
    match options.get("origin-cgroup").map(|value| &**value) {
        None => Ok(None),
        Some(_) if caller.process.is_some() => {
            Err(ErrorKind::NotPermitted.because("option \"origin-cgroup\" is for the system bus only"))
        }
        Some(Variant::Str(path)) => match CgroupPath::parse(path.as_str()) {
            Some(path) => Ok(Some(path)),
            None => Err(ErrorKind::InvalidArgument.because("option \"origin-cgroup\" must be an absolute cgroup path")),
        },
        Some(_) => Err(ErrorKind::InvalidArgument.because("option \"origin-cgroup\" must be a string")),
    }
}
