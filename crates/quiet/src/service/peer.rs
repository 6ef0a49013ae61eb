//! Identifies the peer of a connection. Only the daemon's unit is answered.
//!
//! Only root may open the socket. The check of the peer's cgroup keeps out other processes of root, such as a container that has the
//! node's root directory mounted.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::{KernelProcs, Procs, pid_of_pidfd};

/// The cgroup of the daemon's unit.
const DAEMON_CGROUP: &str = "/system.slice/steliad.service";

/// A peer that is not the daemon and gets no answer; the text identifies it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignPeer(pub String);

/// Whether the peer is the daemon.
///
/// # Errors
/// Who it is instead.
pub(crate) fn is_daemon(stream: &UnixStream) -> Result<(), ForeignPeer> {
    let unknown = |cause: String| ForeignPeer(format!("a process that cannot be identified: {cause}"));
    let credentials = getsockopt(stream, sockopt::PeerCredentials).map_err(|cause| unknown(cause.to_string()))?;
    if credentials.uid() != 0 {
        return Err(ForeignPeer(format!("a process of user {}", credentials.uid())));
    }
    // Before Linux 6.5 only the number is known. If another process has it by now, that process would have to be in the daemon's
    // cgroup too.
    let pidfd = match getsockopt(stream, sockopt::PeerPidfd) {
        Err(nix::errno::Errno::ENOPROTOOPT) => {
            let number = Pid::from_raw(credentials.pid());
            let number = number.ok_or_else(|| unknown("it is in another PID namespace".to_owned()))?;
            pidfd_open(number, PidfdFlags::empty()).map_err(|cause| unknown(cause.to_string()))?
        }
        result => result.map_err(|cause| unknown(cause.to_string()))?,
    };
    let pid = pid_of_pidfd(pidfd.as_fd()).map_err(|cause| unknown(cause.to_string()))?;
    let cgroup = KernelProcs::new("/proc").cgroup(pid);
    let cgroup = cgroup.map_err(|cause| unknown(cause.to_string()))?;
    // The process still exists, so the cgroup that was read by its number is its own.
    pid_of_pidfd(pidfd.as_fd()).map_err(|cause| unknown(cause.to_string()))?;
    check_cgroup(&cgroup)
}

fn check_cgroup(cgroup: &CgroupPath) -> Result<(), ForeignPeer> {
    if cgroup.as_str() == DAEMON_CGROUP {
        Ok(())
    } else {
        Err(ForeignPeer(format!("a process of {cgroup}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_daemons_own_cgroup_is_the_daemons() {
        let of = |path: &str| check_cgroup(&CgroupPath::parse(path).unwrap());
        assert_eq!(of("/system.slice/steliad.service"), Ok(()));
        for other in [
            "/",
            "/system.slice",
            "/system.slice/steliad.service/x",
            "/system.slice/steliad-quiet.service",
            "/kubepods.slice/a/system.slice/steliad.service",
        ] {
            assert_eq!(of(other), Err(ForeignPeer(format!("a process of {other}"))));
        }
    }

    #[test]
    fn a_test_is_not_the_daemon() {
        let (_client, server) = UnixStream::pair().unwrap();
        let ForeignPeer(who) = is_daemon(&server).unwrap_err();
        assert!(who.starts_with("a process of"), "{who}");
    }
}
