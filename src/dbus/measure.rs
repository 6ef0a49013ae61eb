//! How long each call took and how it was answered.

use std::time::Instant;

use super::error::Error;
use crate::authz::Operation;
use crate::engine::Handle;
use crate::plan::admission::Kind;

/// Answer a call, and count it.
pub(super) async fn measured<T>(
    engine: &Handle,
    call: Operation,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let began = Instant::now();
    let answer = work.await;
    engine
        .metrics()
        .answered(call, answer.as_ref().err().map(kind), began.elapsed());
    answer
}

/// The refusal an error stands for.
fn kind(error: &Error) -> Kind {
    match error {
        Error::InvalidArgument(_) => Kind::InvalidArgument,
        Error::NoSuchPod(_) => Kind::NoSuchPod,
        Error::NoSuchInstance(_) => Kind::NoSuchInstance,
        Error::InstanceExists(_) => Kind::InstanceExists,
        Error::NoAnchor(_) => Kind::NoAnchor,
        Error::AmbiguousContainer(_) => Kind::AmbiguousContainer,
        Error::NotGuaranteed(_) => Kind::NotGuaranteed,
        Error::CpusetMismatch(_) => Kind::CpusetMismatch,
        Error::CpusetConflict(_) => Kind::CpusetConflict,
        Error::NotAllocated(_) => Kind::NotAllocated,
        Error::SharedPidNamespace(_) => Kind::SharedPidNamespace,
        Error::ForeignProcess(_) => Kind::ForeignProcess,
        Error::KubeletStateUnusable(_) => Kind::KubeletStateUnusable,
        Error::Busy(_) => Kind::Busy,
        Error::NotPermitted(_) => Kind::NotPermitted,
        Error::Failed(_) | Error::Transport(_) => Kind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_counted_as_what_it_is() {
        for wanted in Kind::ALL {
            assert_eq!(kind(&wanted.because("x").into()), wanted);
        }
    }
}
