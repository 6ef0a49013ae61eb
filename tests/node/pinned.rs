//! Without a partition: the vCPUs are alone on their CPUs as far as lists of others can make it so.

use std::fs;

use crate::support::*;

pub const UNITS: [&str; 3] = ["system.slice", "user.slice", "init.scope"];

pub fn list(unit: &str) -> String {
    read_if_there(format!("{CGROUP}/{unit}/cpuset.cpus"))
}

pub fn is_everybodys(unit: &str) -> bool {
    cpus(&list(unit)).is_empty() || list(unit) == "0-7"
}

/// What a pinned instance promises.
pub fn assert_contained(pod: &Pod) -> Threads {
    pod.assert_is("pinned");
    let threads = pod.threads();
    let exclusive = pod.exclusive();
    assert!(assert_seated(pod, &threads.vcpus).is_subset(&exclusive));
    let shared = near_pool(pod);
    for other in &threads.others {
        other.assert_in(&pod.float(), &shared);
    }
    for unit in UNITS {
        if fs::metadata(format!("{CGROUP}/{unit}")).is_ok() {
            assert!(cpus(&list(unit)).is_disjoint(&exclusive), "{unit}: {}", list(unit));
        }
    }
    for tid in [1, number(&main_pid("systemd-journald"))] {
        let allowed = thread(tid).expect("a daemon of the host").allowed;
        assert!(allowed.is_disjoint(&exclusive), "process {tid} may run on {allowed}");
    }
    threads
}

/// A VM that gets no partition, from its start to its end.
pub fn contained_from_start_to_end() {
    let pod = Pod::vm("pinned", 2);
    let threads = assert_contained(&pod);
    assert_eq!(threads.vcpus.len(), 2);
    assert_eq!(effective("system.slice"), cpus(&list("system.slice")));
    // A shell exec'd into the container starts on its CPUs; the audit moves it.
    pod.exec_sleeper();
    wait_until("the exec'd process floats", || {
        reconcile();
        let sleeping = pod.threads().others.into_iter().find(|thread| thread.name == "sleep")?;
        (sleeping.cgroup == pod.float() && sleeping.allowed == near_pool(&pod)).then_some(())
    });
    // Somebody widens the list.
    run("systemctl set-property --runtime system.slice AllowedCPUs=0-7");
    reconcile();
    assert_contained(&pod);
    // The daemon's death and rebirth change nothing.
    kill_daemon();
    pod.wait_state("pinned");
    assert_eq!(assert_contained(&pod).vcpus, threads.vcpus);
    pod.delete(1);
    wait_until("scope gone", || scopes().is_empty());
    wait_until("every CPU is everybody's again", || {
        UNITS.iter().all(|unit| is_everybodys(unit))
    });
    let saved = run(&["getfattr", "-d", "--absolute-names", SLICE]);
    assert!(!saved.contains("allowed-cpus"), "{saved}");
}

#[test]
fn by_configuration_an_instance_is_contained() {
    configured("partition = \"member\"\n", contained_from_start_to_end);
}
