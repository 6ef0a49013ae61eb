//! Without a partition: the vCPUs are alone on their CPUs as far as lists of others can make it so.

use std::fs;

use crate::support::host::{CGROUP, SLICE, cpus, read, run, scopes, thread, wait_until};
use crate::support::pods::{Pod, Threads, on_node_undoing};
use crate::support::promise::{assert_isolated, near_pool, state};

pub const UNITS: [&str; 3] = ["system.slice", "user.slice", "init.scope"];
const DROP_IN: &str = "/run/stelia/steliad.toml.d/90-test.toml";

pub fn configure(text: &str) {
    set_drop_in(text);
    run(&["systemctl", "reload", "steliad"]);
}

/// Settings that the daemon reads when it starts or reloads.
pub fn set_drop_in(text: &str) {
    fs::create_dir_all("/run/stelia/steliad.toml.d").expect("directory");
    fs::write(DROP_IN, text).expect(DROP_IN);
}

/// The settings as they were; also undoes a test that did not come so far.
pub fn unconfigure() {
    if fs::remove_file(DROP_IN).is_ok() {
        run(&["systemctl", "reload", "steliad"]);
    }
}

pub fn list(unit: &str) -> String {
    fs::read_to_string(format!("{CGROUP}/{unit}/cpuset.cpus"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// What a contained instance promises.
pub fn assert_contained(pod: &Pod) -> Threads {
    assert_eq!(state(pod).as_deref(), Some("contained"));
    let threads = pod.threads();
    let exclusive = pod.exclusive();
    for vcpu in &threads.vcpus {
        assert_eq!((&vcpu.cgroup, vcpu.allowed.len()), (&pod.vcpu(), 1), "{vcpu:?}");
        assert!(vcpu.allowed.is_subset(&exclusive));
    }
    for other in &threads.others {
        assert_eq!(
            (&other.cgroup, &other.allowed),
            (&pod.float(), &near_pool(pod)),
            "{other:?}"
        );
    }
    for unit in UNITS {
        if fs::metadata(format!("{CGROUP}/{unit}")).is_ok() {
            assert!(cpus(&list(unit)).is_disjoint(&exclusive), "{unit}: {}", list(unit));
        }
    }
    let journald = run(&["systemctl", "show", "-P", "MainPID", "systemd-journald"])
        .parse()
        .expect("a number");
    for tid in [1, journald] {
        let allowed = thread(tid).expect("a daemon of the host").allowed;
        assert!(allowed.is_disjoint(&exclusive), "process {tid} may run on {allowed}");
    }
    threads
}

/// A VM that gets no partition, from its start to its end.
pub fn contained_from_start_to_end() {
    let before = UNITS.map(list);
    let pod = Pod::vm("contained", 2);
    let threads = assert_contained(&pod);
    assert_eq!(threads.vcpus.len(), 2);
    assert_eq!(
        read(format!("{CGROUP}/system.slice/cpuset.cpus.effective")),
        list("system.slice")
    );
    // A shell exec'd into the container starts on its CPUs; the audit moves it.
    let sleeper = std::process::Command::new("kubelet-standin")
        .args(["pod", "exec", &pod.name, "--", "sleep", "60"])
        .spawn();
    let mut sleeper = sleeper.expect("kubelet-standin");
    wait_until("the exec'd process floats", || {
        run(&["steliactl", "reconcile"]);
        let sleeping = pod.threads().others.into_iter().find(|thread| thread.name == "sleep")?;
        (sleeping.cgroup == pod.float() && sleeping.allowed == near_pool(&pod)).then_some(())
    });
    // Somebody widens the list.
    run(&[
        "systemctl",
        "set-property",
        "--runtime",
        "system.slice",
        "AllowedCPUs=0-7",
    ]);
    run(&["steliactl", "reconcile"]);
    assert_contained(&pod);
    // The daemon's death and rebirth change nothing.
    run(&[
        "systemctl",
        "kill",
        "--signal=KILL",
        "--kill-whom=main",
        "steliad.service",
    ]);
    wait_until("known again", || {
        (state(&pod).as_deref() == Some("contained")).then_some(())
    });
    assert_eq!(assert_contained(&pod).vcpus, threads.vcpus);
    run(&["kubelet-standin", "pod", "delete", &pod.name, "--grace", "1"]);
    let _ = sleeper.wait();
    wait_until("scope gone", || scopes().is_empty().then_some(()));
    wait_until("every CPU is everybody's again", || {
        let all = |unit: &str| cpus(&list(unit)).is_empty() || list(unit) == "0-7";
        UNITS.iter().all(|unit| all(unit)).then_some(())
    });
    println!("  lists before: {before:?}, after: {:?}", UNITS.map(list));
    let saved = run(&["getfattr", "-d", "--absolute-names", SLICE]);
    assert!(!saved.contains("allowed-cpus"), "{saved}");
}

#[test]
fn by_configuration_an_instance_is_contained() {
    on_node_undoing(unconfigure, || {
        configure("partition = \"member\"\n");
        contained_from_start_to_end();
    });
}

#[test]
fn a_root_partition_keeps_others_out_too() {
    on_node_undoing(unconfigure, || {
        configure("partition = \"root\"\nplacement = \"full-pcpus\"\n");
        let pod = Pod::vm("rooted", 2);
        unconfigure();
        assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), "root");
        assert_eq!(state(&pod).as_deref(), Some("isolated"));
        let effective = cpus(&read(format!("{CGROUP}/system.slice/cpuset.cpus.effective")));
        assert!(effective.is_disjoint(&pod.exclusive()), "{effective}");
        // A setting counts for new instances; this one stays as it was made.
        let other = Pod::vm("isolated", 2);
        assert_isolated(&other, 2);
        assert_eq!(read(pod.vcpu().join("cpuset.cpus.partition")), "root");
    });
}
