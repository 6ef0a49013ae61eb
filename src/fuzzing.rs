//! The gate's reader of what pods send, for the targets in `fuzz/` alone.

pub use crate::dbus::runner_gate::stream::{BYTES_A_CALL, GateError, MAX_FDS, MAX_HANDSHAKE, MAX_MESSAGE, Stream};
