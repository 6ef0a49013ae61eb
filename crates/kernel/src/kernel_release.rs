//! What depends on the release of the kernel.

/// Whether a kernel of this release makes and unmakes `isolated` partitions without danger to the node.
///
/// Since Linux 6.7 the kernel takes isolated CPUs from its unbound workers. Until 7.1 it does so with cpuset's mutex
/// held, and waits there for `kthreadd` to make new workers. `kthreadd` waits, like every fork, while another task is
/// moved between cgroups, and that move waits for the mutex: a deadlock in which nothing on the node forks or exits
/// (seen on 6.12 within seconds). Later kernels release the mutex first; 7.2 is the first one that was tried.
/// `docs/kernels.md` has the whole chain.
pub fn isolated_is_safe(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
    matches!(version, (Some(major), Some(minor)) if (major, minor) >= (7, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_could_stop_the_node_is_known_by_its_release() {
        for unsafe_one in [
            "6.12.107+deb13-cloud-amd64",
            "6.7.0",
            "7.1.9",
            "5.14.0-570.el9.x86_64",
            "",
            "unknown",
        ] {
            assert!(!isolated_is_safe(unsafe_one), "{unsafe_one}");
        }
        for safe in ["7.2.13+deb14-cloud-amd64", "7.2-rc1", "7.10.0", "8.0.1"] {
            assert!(isolated_is_safe(safe), "{safe}");
        }
    }
}
