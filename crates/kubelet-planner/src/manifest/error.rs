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
    /// Nothing in it is a Pod of v1, or has the template of one.
    #[error("there is no Pod in it, and no template of one, only {0}")]
    NoPod(String),
    /// No Pod has the requested name.
    #[error("there is no Pod or template {wanted:?} in it, only {found}")]
    NoSuchPod {
        /// The requested name.
        wanted: String,
        /// The kinds and names that it has.
        found: String,
    },
    /// It has several Pods, and none of them was named, or several have the name.
    #[error("there are several Pods or templates in it: {0}; choose one with --pod KIND/NAME")]
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

impl ManifestError {
    /// The same of an object that has the Pod below this path.
    pub(super) fn below(self, above: &str) -> Self {
        match self {
            Self::Wrong { path, what } if !above.is_empty() => Self::Wrong {
                path: format!("{above}.{path}"),
                what,
            },
            other => other,
        }
    }
}
