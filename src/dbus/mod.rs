//! The D-Bus side: names, client proxies, errors, interfaces and the two doors (system bus, runner socket).

pub mod client;
pub mod error;

/// Bus name of the daemon on the system bus.
pub const BUS_NAME: &str = "io.stelia.Isolation1";
/// Object path of the Manager.
pub const MANAGER_PATH: &str = "/io/stelia/Isolation1";
/// Where the runner socket is, on the host and (its directory mounted read-only) in the pods.
pub const RUNNER_SOCKET: &str = "/run/stelia/runner/socket";
/// AttachVcpus answers this CPU for a thread that is not pinned.
pub const NOT_PINNED: u32 = u32::MAX;
