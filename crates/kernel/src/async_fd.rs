//! Waiting for a descriptor in a runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Belongs to the runtime it is called in. Its successor `register` is unsafe, for types whose descriptor may become another. An [`OwnedFd`]'s
/// does not.
#[allow(deprecated)]
pub(crate) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}
