//! steliad beside k3s: one program that is the control plane, kubelet and the parent of its own containerd.
//!
//! Written from k3s's documentation and sources and not run with k3s itself. Paths and flags are those of `pkg/agent/config/config.go`,
//! `pkg/daemons/agent/{agent,agent_linux}.go`, `pkg/cli/cmds/{agent,server}.go`, `pkg/agent/containerd/` and `install.sh` of k3s-io/k3s,
//! `agent_linux.go` at 00014d2846a2 (1.37.0-rc.1), the others at versions since 1.32.

mod found;
mod node;
mod pods;
mod vms;

use crate::real::common::on_node_of;

/// Run a test body on the node of k3s, and hold the node to being as clean as before when its pods are deleted.
fn on_k3s(body: impl FnOnce()) {
    on_node_of(node::start, pods::delete_all, body);
}
