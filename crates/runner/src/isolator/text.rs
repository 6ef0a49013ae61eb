//! Texts of the isolator's log messages.

use stelia_api::{NOT_PINNED, ThreadRole};

use crate::qmp::Iothread;
use crate::vmm::Release;

/// `vcpu 0 -> cpu 2 (tid 4711), vcpu 1 -> not pinned (tid 4712), I/O thread 0 -> cpu 3 (tid 4713)`.
pub(crate) fn placement(placement: &[(u32, u32, u32)]) -> String {
    let one = |(vcpu, tid, cpu): &(u32, u32, u32)| match *cpu {
        NOT_PINNED => format!("{} -> not pinned (tid {tid})", what(*vcpu)),
        cpu => format!("{} -> cpu {cpu} (tid {tid})", what(*vcpu)),
    };
    placement.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn what(index: u32) -> String {
    match ThreadRole::from(index) {
        ThreadRole::Vcpu(index) => format!("vcpu {index}"),
        role => role.to_string(),
    }
}

/// `no I/O threads`, or `2 I/O threads (disk: tid 7, net: tid 8)`.
pub(crate) fn iothreads(iothreads: &[Iothread]) -> String {
    if iothreads.is_empty() {
        return "no I/O threads".into();
    }
    let one = |one: &Iothread| format!("{}: tid {}", one.id, one.thread_id);
    let list = iothreads.iter().map(one).collect::<Vec<_>>().join(", ");
    format!("{} I/O threads ({list})", iothreads.len())
}

pub(crate) fn released(how: &Release) -> String {
    match how {
        Release::Continue => "guest running".into(),
        Release::Migration(uri) => format!("the migration may come in at {uri}; it continues the guest"),
        Release::External => "ready for the migration; whoever drives it continues the guest".into(),
        Release::AlreadyRunning => "attached to a guest that ran before: what it did until now was not isolated".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_one_readable_line() {
        assert_eq!(
            placement(&[
                (0, 4711, 2),
                (1, 4712, NOT_PINNED),
                (ThreadRole::IoThread(0).into(), 4713, 3)
            ]),
            "vcpu 0 -> cpu 2 (tid 4711), vcpu 1 -> not pinned (tid 4712), I/O thread 0 -> cpu 3 (tid 4713)"
        );
        assert_eq!(placement(&[]), "");
    }

    #[test]
    fn iothreads_are_named() {
        let disk = Iothread {
            id: "disk".into(),
            thread_id: 7,
        };
        assert_eq!(iothreads(&[disk]), "1 I/O threads (disk: tid 7)");
        assert_eq!(iothreads(&[]), "no I/O threads");
    }
}
