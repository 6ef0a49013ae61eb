//! The program beside the real kube-scheduler, API server and etcd, on loopback: `make check-long SECTIONS=real BIN=DIR`, docs/real.md. Nodes are
//! played, as in `simulated_cluster`.
//!
//! | module | what |
//! |---|---|
//! | `control_plane` | the programs as processes |
//! | `nodes` | nodes that admit, publish and end pods |
//! | `pace` | the job `scheduler`: how many pods a second |
//! | `installed` | the job `control-plane`: everything applied as the documents say, each program with its ServiceAccount's token |

mod control_plane;
mod installed;
mod nodes;
mod pace;
