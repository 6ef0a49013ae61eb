//! VMs of other VMMs than QEMU, by `testing/vmm`, which is held to recordings of the real ones (they are not in Debian).

use std::fs;
use std::os::unix::fs::FileExt;

use test_vmm::recording::{Moment, Process, Vmm};

use crate::support::*;

pub const TEST_VMM: &str = "/job/test-vmm";
/// The guest's memory, within the container.
const MEMORY: &str = "/tmp/guest";

/// The recorded processes, without the threads that KVM makes on x86 alone, where they were recorded.
fn recorded(vmm: Vmm, moment: Moment) -> Option<Vec<Process>> {
    let mut processes = vmm.recording().expect("a recording").at(moment)?.to_vec();
    if !cfg!(target_arch = "x86_64") {
        for process in &mut processes {
            process.threads.retain(|name| !name.starts_with("kvm-"));
        }
    }
    Some(processes)
}

/// The command of such a VMM with 2 vCPUs.
pub fn command(vmm: Vmm) -> [&'static str; 7] {
    [TEST_VMM, "--like", vmm.name(), "--vcpus", "2", "--memory", MEMORY]
}

/// A pod whose guest runs.
fn start(vmm: Vmm) -> Pod {
    let options = [Accel::Kvm.device(), &["--cpus", "2"]].concat();
    Pod::start(&format!("like-{}", vmm.name()), &options, &command(vmm)).running()
}

/// Wait until the processes and threads are those that the real VMM had at this moment.
fn until_as_recorded(pod: &Pod, vmm: Vmm, moment: Moment) {
    let expected = recorded(vmm, moment);
    assert!(expected.is_some(), "{moment:?} of {} is not recorded", vmm.name());
    let seen = || format!(": {:#?}, expected {expected:#?}", processes(pod.pid));
    let what = format!("{} is as the recording {moment:?}", pod.name);
    wait_until_or(&what, seen, || processes(pod.pid) == expected);
}

/// What a vCPU has counted, as its memory has it.
fn counted(pod: &Pod, vcpu: u64) -> u32 {
    let file = fs::File::open(pod.inside(MEMORY)).expect("the guest's memory");
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 0x2000 + 4 * vcpu).expect("a counter");
    u32::from_le_bytes(bytes)
}

fn assert_runs(pod: &Pod) {
    for vcpu in 0..2 {
        let before = counted(pod, vcpu);
        wait_until(&format!("vCPU {vcpu} of {} counts on", pod.name), || {
            counted(pod, vcpu) != before
        });
    }
}

#[test]
fn threads_and_processes_are_as_recorded_of_the_vmm_that_is_looked_like() {
    on_kvm_node(|| {
        for vmm in Vmm::ALL {
            let pod = start(vmm);
            // Once all have the names that they give themselves.
            until_as_recorded(&pod, vmm, Moment::Booted);
            let found = all_threads(container_and_nested(pod.pid));
            let own: Vec<u32> = threads_of(pod.pid).iter().map(|thread| thread.tid).collect();
            for vcpu in 0..2 {
                let name = format!("{}{vcpu}", vmm.vcpu_prefix());
                let thread = found.iter().find(|thread| thread.name == name);
                assert!(thread.is_some_and(|thread| own.contains(&thread.tid)), "{found:#?}");
            }
            // Nobody registered it: it is where its runtime put it.
            assert!(found.iter().all(|thread| thread.cgroup == pod.origin()), "{found:#?}");
            assert_runs(&pod);
            if recorded(vmm, Moment::ShutDown).is_some() {
                kill("-USR1", pod.pid);
                until_as_recorded(&pod, vmm, Moment::ShutDown);
                kill("-USR2", pod.pid);
                until_as_recorded(&pod, vmm, Moment::BootedAgain);
            }
            pod.delete(0);
        }
    });
}
