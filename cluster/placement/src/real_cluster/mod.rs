//! The program beside the real kube-scheduler, API server and etcd, on loopback: `make check-long SECTIONS=real BIN=DIR`, docs/real.md. Nodes are
//! played, as in `simulated_cluster`.

mod control_plane;
mod installed;
mod nodes;
mod pace;
