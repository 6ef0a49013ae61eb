//! The CPU limit of a class without CPUs of its own.

use std::process::Command;
use std::time::Instant;

use super::{Sleeper, on_allocator, vm};
use crate::support::*;

#[test]
fn who_has_no_cpus_of_its_own_is_throttled_by_the_least_of_its_containers_and_its_pods_limit() {
    on_allocator("audit-interval-s = 3600", || {
        let ls = Sleeper::start("ls", &["--qos-class", "burstable", "--cpu-limit", "400m"]);
        ls.get("");
        let max = || ls.pod.scope_file("cpu.max");
        assert_eq!(max(), "40000 100000");
        let stat = |name: &str| -> u64 { number(&field(&ls.pod.scope_file("cpu.stat"), &format!("{name} "))) };
        let busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let busy = Killed(busy.expect("a shell"));
        put(ls.pod.float().join("cgroup.procs"), busy.0.id().to_string());
        let (since, throttled, used) = (Instant::now(), stat("nr_throttled"), stat("usage_usec"));
        wait_until("it is throttled", || stat("nr_throttled") > throttled + 20);
        let (passed, ran) = (since.elapsed().as_micros() as u64, stat("usage_usec") - used);
        // Two periods more than its share: the one it began in, and the one it is in.
        assert!(ran <= passed * 4 / 10 + 80_000, "{ran} us in {passed} us");

        // No audit is due: the kernel tells of a resize, of the container's and of the pod's.
        run("kubelet-standin pod resize ls --cpu-limit 300m");
        wait_until("the resize", || max() == "30000 100000");
        let pod = ls.pod.origin().parent().expect("the pod's slice").to_owned();
        let unit = pod.file_name().expect("a name").to_string_lossy().into_owned();
        run(&["systemctl", "set-property", "--runtime", &unit, "CPUQuota=15%"]);
        wait_until("the pod's limit", || max() == "15000 100000");
        drop(busy);

        // kubelet knows nothing of these CPUs, so the container has a quota; what has CPUs of its own has none.
        let lse = vm("lse", 2, &[], &[]);
        assert_eq!(lse.file("cpu.max"), "200000 100000");
        for below in ["", "instance/", "instance/vcpu/"] {
            assert_eq!(lse.scope_file(&format!("{below}cpu.max")), "max 100000", "{below:?}");
        }
        assert_isolated(&lse, 2);
    });
}
