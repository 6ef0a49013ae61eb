//! A container that may write its own cgroup, and writes there what a daemon records of its instances.

use crate::support::*;

/// What may be said of a pod's container: a record by which its only vCPU is this task.
struct Lie<'a> {
    pod: &'a Pod,
    /// Whose it says that it is.
    uid: &'a str,
    exclusive: &'a str,
    task: u32,
}

impl Lie<'_> {
    fn attributes(&self) -> Vec<(&'static str, String)> {
        let start = thread(self.task).expect("a task").start;
        let cpu = cpus(self.exclusive).iter().last().expect("a CPU");
        vec![
            ("pod-uid", self.uid.to_owned()),
            ("container", "instance".to_owned()),
            ("origin", self.pod.cgroup.clone()),
            ("anchor", String::new()),
            ("mems", String::new()),
            ("registered-us", "1".to_owned()),
            ("tree", "in-place".to_owned()),
            ("vcpu-props", String::new()),
            ("placement", "guest".to_owned()),
            ("partition", "root".to_owned()),
            ("vcpus", format!("0:{}:{start}:{cpu}", self.task)),
            ("exclusive-cpus", format!("{0} of {0}", self.exclusive)),
            ("isolated-us", "1".to_owned()),
            ("phase", "isolated".to_owned()),
            ("schema", "1".to_owned()),
        ]
    }

    /// The commands that set them on this directory, under both names that they could have.
    fn commands(&self, directory: &str) -> String {
        let container = self.pod.cgroup.rsplit('/').next().expect("a name");
        let one = |(name, value): (&str, String)| {
            [String::new(), format!("{container}.")]
                .map(|prefix| format!("setfattr -n 'user.stelia.{prefix}{name}' -v '{value}' {directory}"))
                .join(" && ")
        };
        self.attributes().into_iter().map(one).collect::<Vec<_>>().join(" && ")
    }
}

fn place(task: u32) -> (String, String) {
    (read(format!("/proc/{task}/cgroup")), allowed(task).to_string())
}

/// The next daemon finds it.
fn restart_daemon() {
    // systemd limits how often a unit is started in ten seconds.
    run("systemctl reset-failed steliad");
    restart("steliad");
    reconcile();
}

fn assert_victim_is_maintained(victim: &Pod) {
    assert_isolated(victim, 2);
    put(victim.vcpu().join("cpuset.cpus.partition"), "member");
    wait_until("the victim's partition is repaired", || is_isolated(victim, 2));
    assert_eq!(partitioned(), victim.exclusive());
}

#[test]
fn a_container_that_writes_its_own_cgroup_gains_nothing() {
    on_node(|| {
        let victim = Pod::vm("victim", 2);
        let options = ["--cpus", "2", "--cgroup-writable"];
        let attacker = Pod::start("attacker", &options, &["sleep", "infinity"]);
        let own = attacker.cpus.clone().expect("CPUs of its own");
        let within = |command: &str| attacker.try_exec(&["sh", "-c", command]);
        // It sees its own cgroup at most, and that one it may write.
        let seen =
            within("cat /proc/self/cgroup; ls -d /sys/fs/cgroup/kubepods* /sys/fs/cgroup/../cgroup/kubepods* 2>&1");
        let seen = utf8(&seen.stdout);
        assert!(seen.starts_with("0::/\n") && !seen.contains(".slice\n"), "{seen}");
        let pods_own = attacker.origin().parent().expect("the pod's").to_owned();
        let names = || {
            run(&format!(
                "getfattr --absolute-names -d -m user.stelia {}",
                pods_own.display()
            ))
        };
        let before = names();

        let init = place(1);
        let vcpu = victim.threads().vcpus[0].tid;
        let shared: String = pool().to_string();
        let lie = |uid, exclusive, task| Lie {
            pod: &attacker,
            uid,
            exclusive,
            task,
        };
        let lies = [
            ("PID 1 of the host", lie(&attacker.uid, &own, 1)),
            ("shared CPUs", lie(&attacker.uid, &shared, attacker.pid)),
            ("another pod", lie(&victim.uid, &own, attacker.pid)),
            ("another VM's vCPU", lie(&attacker.uid, &own, vcpu)),
        ];
        for (what, lie) in &lies {
            let written = within(&lie.commands("/sys/fs/cgroup"));
            assert!(written.status.success(), "{what}: {written:?}");
            assert_eq!(names(), before, "{what}: nothing is on the pod's cgroup");
            restart_daemon();
            assert_eq!(place(1), init, "{what}");
            assert_eq!(attacker.state(), None, "{what}");
            assert_eq!(describe()["node"]["unreadable"].to_string(), "[]", "{what}");
            assert_victim_is_maintained(&victim);
        }

        // Whoever may write the pod's cgroup is root. What is there is believed no more than that. With CPUs of others and a task of its
        // own the container would get those that kubelet gave it, which is no harm.
        for (what, lie) in lies.iter().filter(|(what, _)| *what != "shared CPUs") {
            let written = output(&["sh", "-c", &lie.commands(&pods_own.display().to_string())]);
            assert!(written.status.success(), "{what}: {written:?}");
            restart_daemon();
            assert_eq!(place(1), init, "{what}");
            assert_eq!(attacker.state(), None, "{what}");
            let unreadable = describe()["node"]["unreadable"].to_string();
            assert!(unreadable.contains(&attacker.cgroup), "{what}: {unreadable}");
            assert_victim_is_maintained(&victim);
        }

        // It ends with its container.
        attacker.delete(0);
        assert!(!attacker.origin().exists());
        reconcile();
        assert_eq!(describe()["node"]["unreadable"].to_string(), "[]");
        assert_victim_is_maintained(&victim);
    });
}
