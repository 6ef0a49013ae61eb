//! Why the device manager rejects a pod.

/// Why the device manager rejects a pod, or why that is not known. The texts are kubelet's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeviceRefusal {
    /// A limit of this planner, not of kubelet: the number of NUMA nodes with devices of the resource.
    #[error(
        "not predicted: {resource} is on {nodes} NUMA nodes, and this planner looks at the sets of 16 at most; kubelet sets no limit"
    )]
    NotSearched { resource: String, nodes: usize },
    /// A limit of what is known of the node.
    #[error(
        "unknown: the answer depends on the NUMA nodes of the free devices of {0}, and these are not known; --devices gives them"
    )]
    Unplaced(String),
    /// A limit of what is known of the node.
    #[error(
        "unknown: the answer depends on whether the plugin of {0} reports the NUMA nodes of its devices, and no pod has one that would show it; --devices gives them"
    )]
    Unreported(String),
    /// A limit of what is known of the node.
    #[error(
        "unknown: kubelet's record of devices cannot be read, so the free devices of {0} are not known; --devices gives them"
    )]
    Unrecorded(String),
    /// The container has devices already, and not as many as it requests.
    #[error("pod {pod:?} container {container:?} changed request for resource {resource:?} from {had} to {requested}")]
    Changed {
        pod: String,
        container: String,
        resource: String,
        had: usize,
        requested: u64,
    },
    /// The resource is known only from its devices in use: its plugin has not registered.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The plugin reports none of its devices as healthy, or is gone.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    /// The container has devices already, and they are not healthy any more.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    /// Too few healthy devices are free.
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    NotEnough {
        resource: String,
        /// Devices wanted, less those of init containers.
        requested: u64,
        available: usize,
    },
}

impl DeviceRefusal {
    /// Whether nothing is known of kubelet's answer.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(
            self,
            Self::NotSearched { .. } | Self::Unplaced(_) | Self::Unreported(_) | Self::Unrecorded(_)
        )
    }
}
