//! Why a manifest is refused.

/// Why a manifest has no pod to plan for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Longer than [`MAX_BYTES`](super::MAX_BYTES).
    #[error("it has more than {0} bytes")]
    TooLong(usize),
    /// It is neither YAML nor JSON.
    #[error("it does not parse: {0}")]
    Syntax(String),
    /// It has no document.
    #[error("it is empty")]
    Empty,
    /// Nothing in it is a Pod of v1.
    #[error("there is no Pod in it, only {0}")]
    NoPod(String),
    /// No Pod has the requested name.
    #[error("there is no Pod {wanted:?} in it, only {found}")]
    NoSuchPod {
        /// The requested name.
        wanted: String,
        /// The kinds and names that it has.
        found: String,
    },
    /// It has several Pods, and none of them was named.
    #[error("there are several Pods in it: {0}; name one")]
    SeveralPods(String),
    /// Two containers in words have the same name.
    #[error("there are two called {0}")]
    Twice(String),
    /// The API server would refuse something in the Pod.
    #[error("{path}: {what}")]
    Wrong {
        /// Where, such as `spec.containers[0].resources.limits.cpu`.
        path: String,
        /// What is wrong there.
        what: String,
    },
}
