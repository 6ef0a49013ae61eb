//! Why a call is refused, by the names of the D-Bus contract.

/// Why a call is refused. Each text stands alone; the D-Bus error has the variant's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Which error.
    pub kind: Kind,
    /// What was wrong, for a reader who sees nothing else.
    pub text: String,
    /// Whether waiting may help.
    pub may_pass: bool,
}

impl Refusal {
    /// One that waiting does not help.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self {
            may_pass: false,
            ..self
        }
    }
}

/// The refusals of the D-Bus contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Each is documented as the D-Bus error of the same name.
pub enum Kind {
    InvalidArgument,
    NoSuchPod,
    NoSuchInstance,
    InstanceExists,
    NoAnchor,
    AmbiguousContainer,
    NotGuaranteed,
    CpusetMismatch,
    CpusetConflict,
    NotAllocated,
    SharedPidNamespace,
    ForeignProcess,
    KubeletStateUnusable,
    Busy,
    NotPermitted,
    Failed,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::InvalidArgument,
        Self::NoSuchPod,
        Self::NoSuchInstance,
        Self::InstanceExists,
        Self::NoAnchor,
        Self::AmbiguousContainer,
        Self::NotGuaranteed,
        Self::CpusetMismatch,
        Self::CpusetConflict,
        Self::NotAllocated,
        Self::SharedPidNamespace,
        Self::ForeignProcess,
        Self::KubeletStateUnusable,
        Self::Busy,
        Self::NotPermitted,
        Self::Failed,
    ];

    /// A refusal of this kind.
    pub fn because(self, text: impl Into<String>) -> Refusal {
        Refusal {
            kind: self,
            text: text.into(),
            may_pass: self.may_pass(),
        }
    }

    /// Whether waiting may help as a rule: kubelet's second write may be milliseconds away, an old scope may be emptying.
    fn may_pass(self) -> bool {
        matches!(
            self,
            Self::NotGuaranteed | Self::CpusetMismatch | Self::KubeletStateUnusable | Self::InstanceExists
        )
    }
}
