//! Why a manifest is refused.

/// Why there is no pod to plan for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Longer than any manifest.
    #[error("it has more than {0} bytes")]
    TooLong(usize),
    /// It is neither YAML nor JSON.
    #[error("it does not parse: {0}")]
    Syntax(String),
    /// There is no document in it.
    #[error("it is empty")]
    Empty,
    /// Nothing in it is a Pod of v1.
    #[error("there is no Pod in it, only {0}")]
    NoPod(String),
    /// No Pod has the name asked for.
    #[error("there is no Pod {wanted:?} in it, only {found}")]
    NoSuchPod {
        /// The name.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// It has several Pods, and none of them was named.
    #[error("there are several Pods in it: {0}; name one")]
    SeveralPods(String),
    /// Something in the Pod is not as the API server would have it.
    #[error("{path}: {what}")]
    Wrong {
        /// Where, such as `spec.containers[0].resources.limits.cpu`.
        path: String,
        /// What is wrong there.
        what: String,
    },
}
