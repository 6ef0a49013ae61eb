//! What a registration says, and whether it parses.

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::AllocationRequest;
use stelia_kubelet::PodUid;
use stelia_settings::{Isolation, QuietRequest};

/// What the caller says. An empty string stands for an argument that is not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// The pod's UID.
    pub pod: String,
    /// The CPUs that its container has, as a list.
    pub cpuset: String,
    /// The options of steliad's own allocator.
    pub request: AllocationRequest,
    /// What is ordered for the CPUs besides.
    pub quiet: QuietRequest,
    /// Who is to use the container's exclusive CPUs.
    pub isolation: Isolation,
}

/// A claim that parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckedClaim {
    /// The pod.
    pub pod: Option<PodUid>,
    /// The CPUs that its container has.
    pub cpuset: Option<CpuSet>,
    /// The options of steliad's own allocator.
    pub request: AllocationRequest,
    /// What is ordered for the CPUs besides.
    pub quiet: QuietRequest,
    /// Who is to use the container's exclusive CPUs.
    pub isolation: Isolation,
}

impl Claim {
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(&self) -> Result<CheckedClaim, Error> {
        let invalid = |cause: String| ErrorKind::InvalidArgument.because(cause);
        let pod = match self.pod.as_str() {
            "" => None,
            text => Some(PodUid::parse(text).map_err(|cause| invalid(format!("pod_uid: {cause}")))?),
        };
        let cpuset = match self.cpuset.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|cause| invalid(format!("cpuset: {cause}")))?),
        };
        Ok(CheckedClaim {
            pod,
            cpuset,
            request: self.request.clone(),
            quiet: self.quiet.clone(),
            isolation: self.isolation,
        })
    }
}
