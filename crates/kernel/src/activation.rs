//! Sockets that systemd listens on for a program (sd_listen_fds(3)).

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixListener;

use libsystemd::activation::{IsType, receive_descriptors_with_names};

/// The Unix socket that systemd passed under this name (`FileDescriptorName=`), for which nobody waits; `None` where it passed none.
/// The environment says so once: a second call finds nothing.
pub fn listener(name: &str) -> io::Result<Option<UnixListener>> {
    let Ok(descriptors) = receive_descriptors_with_names(true) else {
        return Ok(None);
    };
    let mut descriptors = descriptors.into_iter();
    let found = descriptors.find(|(descriptor, passed)| passed == name && descriptor.is_unix());
    let Some((descriptor, _)) = found else { return Ok(None) };
    let listener = owned(descriptor.into_raw_fd());
    // Children must not keep it.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// The one place that needs `unsafe`: descriptors passed by systemd are numbers only.
#[allow(unsafe_code)]
fn owned(descriptor: RawFd) -> UnixListener {
    // SAFETY: systemd passed this descriptor to us and libsystemd gave up its ownership with into_raw_fd.
    unsafe { UnixListener::from_raw_fd(descriptor) }
}
