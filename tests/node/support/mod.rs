//! What the tests use: the node as it is, its pods and guests, and what an isolated VM is promised.

pub mod apiserver;
pub mod device_plugin;
pub mod guest;
pub mod host;
pub mod linux_guest;
pub mod pod_recording;
pub mod pods;
pub mod promise;
pub mod stopped_daemon;
pub mod strace;
pub mod vmm_processes;
