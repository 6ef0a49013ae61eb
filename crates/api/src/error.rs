//! The errors of calls: one list of kinds for D-Bus, the metrics and the man page.

use std::fmt;

use stelia_kubelet::PodUid;

use crate::reason;
use crate::reason::{Reason, ReasonCode};

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The pod whose details (CPUs, paths, processes) are in the text; `None`: the kind decides who may read it
    /// (`is_of_the_call`).
    pub pod: Option<PodUid>,
    pub kind: ErrorKind,
    /// What was wrong; `busctl` prints nothing else, so it must be understood alone.
    pub text: String,
    /// Causes or details, each with the pod that it concerns.
    pub causes: Vec<Reason>,
    /// Whether the same call may succeed within seconds.
    pub may_pass: bool,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match self.causes.first() {
            Some(first) if first.code == ReasonCode::Detail => "; ",
            Some(_) => ": ",
            None => "",
        };
        write!(f, "{}{separator}{}", self.text, reason::joined(&self.causes))
    }
}

impl Error {
    /// The node did not do what the call needs. The text has details of the node, which pods may not read unless [`Self::of`] names one.
    pub fn failed(cause: impl fmt::Display) -> Self {
        ErrorKind::Failed.because(cause.to_string())
    }

    /// The same error, not to be tried again.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self {
            may_pass: false,
            ..self
        }
    }

    /// The same error, which may pass within seconds.
    #[must_use]
    pub fn passing(self) -> Self {
        Self { may_pass: true, ..self }
    }

    /// The same error; its text has details of this pod and of no other.
    #[must_use]
    pub fn of(self, pod: &PodUid) -> Self {
        Self {
            pod: Some(pod.clone()),
            ..self
        }
    }

    #[must_use]
    pub fn with(self, causes: Vec<Reason>) -> Self {
        Self { causes, ..self }
    }

    /// The same error with a detail for operators only.
    #[must_use]
    pub fn detail(self, text: impl Into<String>) -> Self {
        self.with(vec![Reason::of_node(ReasonCode::Detail, text)])
    }

    /// What this pod may read of it.
    #[must_use]
    pub fn visible_to(self, pod: &PodUid) -> Self {
        let own = match &self.pod {
            Some(whose) => whose == pod,
            None => self.kind.is_of_the_call(),
        };
        Self {
            pod: Some(pod.clone()),
            text: if own { self.text } else { self.kind.says().to_owned() },
            causes: reason::visible_to(&self.causes, pod),
            ..self
        }
    }
}

/// Each kind's name, and what it says.
macro_rules! kinds {
    ($($kind:ident = $says:literal),+ $(,)?) => {
        /// The refusals of the D-Bus contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ErrorKind {
            $(#[doc = $says] $kind),+
        }

        impl ErrorKind {
            pub const ALL: [Self; [$($says),+].len()] = [$(Self::$kind),+];

            /// Its name in the metrics, and the last part of the D-Bus error's.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind)),+
                }
            }

            pub fn error_name(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!("io.stelia.Isolation1.Error.", stringify!($kind))),+
                }
            }

            /// The meaning, for the man page, and for a pod in place of a text with details of others.
            pub fn says(self) -> &'static str {
                match self {
                    $(Self::$kind => $says),+
                }
            }
        }
    };
}

kinds! {
    InvalidArgument = "an argument cannot be parsed or contradicts another argument",
    NoSuchPod = "kubelet knows no such pod, or the pod has no container cgroup",
    NoSuchInstance = "there is no such instance, or the caller may not see it",
    InstanceExists = "the pod has an instance already, for another container",
    NoAnchor = "no anchor was passed, or the anchor is not where it must be",
    AmbiguousContainer = "more than one container of the pod matches",
    NotGuaranteed = "kubelet assigned no exclusive CPUs to the container",
    CpusetMismatch = "the given CPUs are not the CPUs that kubelet assigned",
    CpusetConflict = "the CPUs belong to another instance",
    NotAllocated = "steliad's own allocator has no CPUs, or no pool, that satisfy the request",
    SharedPidNamespace = "the container has no PID namespace of its own",
    ForeignProcess = "a process or thread does not belong to the caller's pod",
    KubeletStateUnusable = "kubelet's state file is absent or not understood",
    Busy = "the daemon is at its limit; try again",
    NotPermitted = "the caller may not do this",
    Failed = "the operation failed on the node; steliad's journal has the operation, path and cause",
}

impl ErrorKind {
    pub fn because(self, text: impl Into<String>) -> Error {
        Error {
            pod: None,
            kind: self,
            text: text.into(),
            causes: Vec::new(),
            may_pass: self.may_pass(),
        }
    }

    /// For `map_err`: an error of this kind with what was tried and its cause, as `WHAT: CAUSE`.
    pub fn context<C: fmt::Display>(self, what: impl fmt::Display) -> impl Fn(C) -> Error {
        move |cause| self.because(format!("{what}: {cause}"))
    }

    /// Whether texts of this kind have only what the caller knows: its arguments, itself, its pod. Texts of the other kinds have
    /// facts of the node, which are for the operator.
    fn is_of_the_call(self) -> bool {
        !matches!(self, Self::CpusetConflict | Self::KubeletStateUnusable | Self::Failed)
    }

    /// Whether the call may succeed a moment later: kubelet's second write may be milliseconds away, an old scope may be emptying.
    fn may_pass(self) -> bool {
        matches!(
            self,
            Self::NotGuaranteed | Self::CpusetMismatch | Self::KubeletStateUnusable | Self::InstanceExists
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    #[test]
    fn every_kind_tells_another_pod_no_more_than_what_it_says() {
        for kind in ErrorKind::ALL {
            let theirs = kind.because("CPUs 4-5").of(&pod(2)).detail("process 77");
            let told = theirs.clone().visible_to(&pod(1));
            assert_eq!((told.to_string(), told.kind), (kind.says().to_owned(), kind));
            assert_eq!(told.clone().visible_to(&pod(1)), told, "twice is as once");
            assert_eq!(theirs.visible_to(&pod(2)).to_string(), "CPUs 4-5");
            assert_eq!(kind.error_name(), format!("io.stelia.Isolation1.Error.{kind:?}"));
        }
    }

    #[test]
    fn what_is_not_said_to_be_a_pods_is_told_by_its_kind() {
        let told = |kind: ErrorKind| kind.because("words").visible_to(&pod(1)).text == "words";
        let kept: Vec<ErrorKind> = ErrorKind::ALL.into_iter().filter(|kind| !told(*kind)).collect();
        assert_eq!(
            kept,
            [
                ErrorKind::CpusetConflict,
                ErrorKind::KubeletStateUnusable,
                ErrorKind::Failed
            ]
        );
    }
}
