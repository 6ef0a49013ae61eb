//! A container's CPU request, as kubelet passes it to the runtime and the runtime to the kernel.

/// `cpu.shares` that kubelet gives for one CPU of a request.
const SHARES_PER_CPU: u64 = 1024;
/// The least and the most it gives, as the kernel's cgroup v1 had it.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

/// A container's CPU request, read back from the runtime's configuration and the cgroup.
///
/// kubelet assigns exclusive CPUs only to a container that requests exactly that whole number. A container without a
/// request of its own, in a pod with pod-level resources, has the shares of the whole pod's limit (kubelet 1.32 on,
/// `getCPULimit`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuRequest {
    /// `linux.resources.cpu.shares` in the runtime's configuration: kubelet's value when the container was made.
    pub shares: Option<u64>,
    /// `cpu.weight` of its cgroup: the runtime's conversion of the shares, also after a resize.
    pub weight: Option<u64>,
}

impl CpuRequest {
    /// Whether it is a request of exactly this number of CPUs; `None` when neither value is known. One value that says
    /// yes is enough: after a resize the runtime's configuration is out of date, and any program may have set the
    /// weight.
    pub fn is_of(&self, cpus: usize) -> Option<bool> {
        let shares = (cpus as u64).saturating_mul(SHARES_PER_CPU);
        let shares = shares.clamp(*SHARES.start(), *SHARES.end());
        let by_shares = self.shares.map(|own| own == shares);
        let by_weight = self.weight.map(|weight| is_weight(weight, shares));
        match (by_shares, by_weight) {
            (None, None) => None,
            (one, other) => Some(one == Some(true) || other == Some(true)),
        }
    }
}

/// Whether a runtime converts these shares to this weight: linearly (runc before 1.3.2, and crun of that time), or by
/// the curve that maps 1024 shares to weight 100.
fn is_weight(weight: u64, shares: u64) -> bool {
    let line = 1 + (shares - SHARES.start()) * 9999 / (SHARES.end() - SHARES.start());
    let log = (shares as f64).log2();
    let curve = 10f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil();
    // The curve is rounded up from a float, which may be slightly above a whole number.
    weight == line || (weight as f64 - curve).abs() <= 1.0
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn request(shares: Option<u64>, weight: Option<u64>) -> CpuRequest {
        CpuRequest { shares, weight }
    }

    #[rstest]
    // As runc 1.1 and the stand-in write them, and as runc 1.3.2 and crun 1.23 do.
    #[case(1, 39, 100)]
    #[case(2, 79, 174)]
    #[case(4, 157, 303)]
    #[case(256, 10000, 10000)]
    fn a_request_of_whole_cpus_is_known_by_shares_and_by_either_weight(
        #[case] cpus: usize,
        #[case] line: u64,
        #[case] curve: u64,
    ) {
        let shares = 1024 * cpus as u64;
        for known in [
            request(Some(shares), None),
            request(None, Some(line)),
            request(None, Some(curve)),
            // Resized after the runtime wrote its configuration.
            request(Some(1024 * 7), Some(line)),
        ] {
            assert_eq!(known.is_of(cpus), Some(true), "{known:?}");
        }
    }

    #[test]
    fn a_pods_whole_limit_or_the_least_is_no_request_of_one_cpu() {
        // The sidecar of a pod limited to 3 CPUs, and a container without any request or limit.
        for other in [
            request(Some(3072), Some(118)),
            request(Some(3072), Some(240)),
            request(Some(2), Some(1)),
            request(None, Some(118)),
            request(Some(512), None),
        ] {
            assert_eq!(other.is_of(1), Some(false), "{other:?}");
        }
    }

    #[test]
    fn without_a_reading_nothing_is_said() {
        assert_eq!(CpuRequest::default().is_of(1), None);
    }
}
