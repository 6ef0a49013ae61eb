use std::collections::BTreeMap;

/// A vCPU as QEMU describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpu {
    /// `cpu-index`.
    pub index: u32,
    /// `props` of `query-cpus-fast`: `socket-id`, `core-id`, `thread-id`, `node-id` and the like.
    pub props: BTreeMap<String, i64>,
}
