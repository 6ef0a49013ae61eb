//! Runners that others wrote: those of `docs/write-a-runner.md`.

use rstest::rstest;

use crate::ledger::object;
use crate::support::*;

/// jeepney comes with the job.
const PYTHON: [&str; 4] = ["env", "PYTHONPATH=/job/python", "/usr/bin/python3", "/job/runner.py"];
const GO: [&str; 1] = ["/job/runner-go"];

/// The property VCPUs: (vCPU, thread, CPU).
fn vcpus(pod: &Pod) -> Vec<(u32, u32, u32)> {
    let get = words("busctl --json=short get-property io.stelia.Isolation1");
    let path = object(&pod.uid);
    let property = [&path, "io.stelia.Isolation1.Instance", "VCPUs"];
    let answer = json(&run(&[&get[..], &property].concat()));
    parse(&answer["data"].to_string())
}

#[rstest]
#[case::python("python", &PYTHON)]
#[case::go("go", &GO)]
fn a_documented_runner_isolates_its_vm(#[case] name: &str, #[case] program: &[&str]) {
    on_node(|| {
        let accel = Accel::of_node();
        let command = [program, &["/run/qmp"], &accel.qemu(), &["-smp", "2"]].concat();
        let pod = Pod::start(name, &[accel.device(), &["--cpus", "2"]].concat(), &command).running();
        assert_eq!(pod.state().as_deref(), Some("isolated"), "{}", pod.logs());
        // Each vCPU has an exclusive CPU of its own, which the property names.
        let threads = pod.threads();
        assert_eq!(threads.vcpus.len(), 2, "{threads:#?}");
        let named = vcpus(&pod);
        assert_eq!(named.len(), 2, "{named:?}");
        for (_, tid, cpu) in named {
            let mut vcpus = threads.vcpus.iter();
            let thread = vcpus.find(|thread| thread.tid == tid);
            let thread = thread.unwrap_or_else(|| panic!("{tid} is no vCPU: {threads:#?}"));
            thread.assert_in(&pod.vcpu(), &cpus(&cpu.to_string()));
        }
        // Everything else floats, and the anchor alone is where kubelet put it.
        let anchor = pod.file("cgroup.procs");
        let left: Vec<&str> = anchor.lines().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let is_anchor = |thread: &Thread| thread.tid.to_string() == left[0];
        let wrong = wrong(&pod, &threads.vcpus, &threads.others, &near_pool(&pod), is_anchor);
        assert_eq!(wrong, None);
    });
}
