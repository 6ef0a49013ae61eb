//! What a call is answered that is not done: one list of names, which the D-Bus contract, the metrics and the man page have.

use std::fmt;

use stelia_kubelet::PodUid;

use crate::reason;
use crate::reason::{Amiss, Reason};

/// Why a call is refused. Each text stands alone; the D-Bus error has the kind's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Whose particulars are in the text; `None`: it depends on the kind (`is_of_the_call`).
    pub pod: Option<PodUid>,
    /// Which error.
    pub kind: ErrorKind,
    /// What was wrong, for a reader who sees nothing else.
    pub text: String,
    /// What led to it, or what else there is to know, each with its own particulars.
    pub causes: Vec<Reason>,
    /// Whether waiting may help.
    pub may_pass: bool,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match self.causes.first().map(|first| first.kind) {
            Some(Amiss::Detail) => "; ",
            Some(_) => ": ",
            None => "",
        };
        write!(f, "{}{separator}{}", self.text, reason::joined(&self.causes))
    }
}

impl Error {
    /// One that waiting does not help.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self {
            may_pass: false,
            ..self
        }
    }

    /// One whose text has this pod's particulars and no other's.
    #[must_use]
    pub fn of(self, pod: &PodUid) -> Self {
        Self {
            pod: Some(pod.clone()),
            ..self
        }
    }

    /// One with its causes.
    #[must_use]
    pub fn with(self, causes: Vec<Reason>) -> Self {
        Self { causes, ..self }
    }

    /// One with what only an operator is to know.
    #[must_use]
    pub fn detail(self, text: impl Into<String>) -> Self {
        self.with(vec![Reason::of_node(Amiss::Detail, text)])
    }

    /// As this pod may read it.
    #[must_use]
    pub fn told_to(self, pod: &PodUid) -> Self {
        let own = match &self.pod {
            Some(whose) => whose == pod,
            None => self.kind.is_of_the_call(),
        };
        Self {
            pod: Some(pod.clone()),
            text: if own { self.text } else { self.kind.says().to_owned() },
            causes: reason::told_to(&self.causes, pod),
            ..self
        }
    }
}

/// The one list: each kind's name, and what it says.
macro_rules! kinds {
    ($($kind:ident = $says:literal),+ $(,)?) => {
        /// The refusals of the D-Bus contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ErrorKind {
            $(#[doc = $says] $kind),+
        }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: [Self; [$($says),+].len()] = [$(Self::$kind),+];

            /// Its name in the metrics, and the last part of the D-Bus error's.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind)),+
                }
            }

            /// The name of the D-Bus error.
            pub fn error_name(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!("io.stelia.Isolation1.Error.", stringify!($kind))),+
                }
            }

            /// What it says of any call: the manual page has it, and a pod is told no more where the particulars are not its own.
            pub fn says(self) -> &'static str {
                match self {
                    $(Self::$kind => $says),+
                }
            }
        }
    };
}

kinds! {
    InvalidArgument = "an argument does not parse or contradicts another",
    NoSuchPod = "kubelet knows no such pod, or the pod has no container cgroup",
    NoSuchInstance = "no such instance, or none that the caller may see",
    InstanceExists = "the pod has an instance already, of another container",
    NoAnchor = "no anchor was handed over, or it is not where it must be",
    AmbiguousContainer = "more than one container of the pod fits",
    NotGuaranteed = "kubelet gave the container no exclusive CPUs",
    CpusetMismatch = "the CPUs named are not the CPUs kubelet gave",
    CpusetConflict = "the CPUs belong to another instance",
    NotAllocated = "steliad's own allocator has no CPUs, or no pool, that satisfy the request",
    SharedPidNamespace = "the container has no PID namespace of its own",
    ForeignProcess = "a process or thread does not belong to the caller's pod",
    KubeletStateUnusable = "kubelet's state file is absent or not understood",
    Busy = "the daemon is at its limit; try again",
    NotPermitted = "the caller may not do this",
    Failed = "the node could not do it; steliad's journal has operation, path and cause",
}

impl ErrorKind {
    /// A refusal of this kind.
    pub fn because(self, text: impl Into<String>) -> Error {
        Error {
            pod: None,
            kind: self,
            text: text.into(),
            causes: Vec::new(),
            may_pass: self.may_pass(),
        }
    }

    /// For `map_err`: a refusal of this kind that says what was done and why it failed, as `WHAT: CAUSE`.
    pub fn context<C: fmt::Display>(self, what: impl fmt::Display) -> impl Fn(C) -> Error {
        move |cause| self.because(format!("{what}: {cause}"))
    }

    /// Whether a text of this kind speaks, as a rule, of the call alone: of its arguments, of the caller and its pod, which the
    /// caller knows. The others' are of the node, and for the operator.
    fn is_of_the_call(self) -> bool {
        !matches!(self, Self::CpusetConflict | Self::KubeletStateUnusable | Self::Failed)
    }

    /// Whether waiting may help as a rule: kubelet's second write may be milliseconds away, an old scope may be emptying.
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
            let told = theirs.clone().told_to(&pod(1));
            assert_eq!((told.to_string(), told.kind), (kind.says().to_owned(), kind));
            assert_eq!(told.clone().told_to(&pod(1)), told, "twice is as once");
            assert_eq!(theirs.told_to(&pod(2)).to_string(), "CPUs 4-5");
            assert_eq!(kind.error_name(), format!("io.stelia.Isolation1.Error.{kind:?}"));
        }
    }

    #[test]
    fn what_is_not_said_to_be_a_pods_is_told_by_its_kind() {
        let told = |kind: ErrorKind| kind.because("words").told_to(&pod(1)).text == "words";
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
