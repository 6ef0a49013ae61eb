//! steliad beside kubelet itself, with containerd's CRI: static pods in `standalone`, pods of an API server in `with_server`.

mod frame;
mod manifest;
mod runtime;
mod standalone;
mod with_server;
