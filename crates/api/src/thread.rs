//! The threads of QEMU that AttachVcpus pins.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of I/O thread 0; vCPUs have the numbers below.
const IO_THREADS: u32 = 1 << 31;

/// What a thread of QEMU is to the guest, with its index among those of its kind.
///
/// D-Bus, the record and the JSON have one number for both, 2³¹ + n for I/O thread n: it is translated where it is read or
/// written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub enum ThreadRole {
    /// The index is QMP's `cpu-index`.
    Vcpu(u32),
    /// The index is the place in AttachVcpus' option `iothreads`.
    IoThread(u32),
}

impl Default for ThreadRole {
    fn default() -> Self {
        Self::Vcpu(0)
    }
}

impl From<u32> for ThreadRole {
    fn from(number: u32) -> Self {
        match number.checked_sub(IO_THREADS) {
            Some(index) => Self::IoThread(index),
            None => Self::Vcpu(number),
        }
    }
}

impl From<ThreadRole> for u32 {
    fn from(role: ThreadRole) -> Self {
        match role {
            ThreadRole::Vcpu(index) => index,
            ThreadRole::IoThread(index) => IO_THREADS | index,
        }
    }
}

/// `vCPU 3` or `I/O thread 0`.
impl fmt::Display for ThreadRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpu(index) => write!(f, "vCPU {index}"),
            Self::IoThread(index) => write!(f, "I/O thread {index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_comes_back_from_its_number_in_the_numbers_order() {
        let roles = [0, 1, IO_THREADS - 1, IO_THREADS, u32::MAX].map(ThreadRole::from);
        assert!(roles.is_sorted());
        assert_eq!(roles.map(u32::from), [0, 1, IO_THREADS - 1, IO_THREADS, u32::MAX]);
        let named = [roles[1], roles[3]].map(|role| role.to_string());
        assert_eq!(named, ["vCPU 1", "I/O thread 0"]);
    }
}
