//! A vCPU as QEMU describes it.

use std::collections::BTreeMap;

/// From this index on it is no vCPU but an I/O thread that was given to be pinned too.
pub const IOTHREADS: u32 = 1 << 31;

/// Whether an index is an I/O thread's.
pub fn is_iothread(index: u32) -> bool {
    index >= IOTHREADS
}

/// A vCPU as QEMU describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpu {
    /// `cpu-index`.
    pub index: u32,
    /// `props` of `query-cpus-fast`: `socket-id`, `core-id`, `thread-id`, `node-id` and the like.
    pub props: BTreeMap<String, i64>,
}
