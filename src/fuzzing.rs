//! Doors for the targets in `fuzz/`: what reads bytes of others and is nobody else's business. Built for them only.

pub use crate::dbus::gate::stream::{BYTES_A_CALL, GateError, MAX_FDS, MAX_HANDSHAKE, MAX_MESSAGE, Stream};
