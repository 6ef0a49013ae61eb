//! steliad beside kubelet itself, with containerd's CRI: static pods in `standalone`, pods of an API server in `with_server`.

pub(super) mod frame;
pub(super) mod manifest;
mod standalone;
mod with_server;
