//! Threads that the kernel makes just after a guest has begun to run.
//!
//! KVM makes its huge page recovery thread when a vCPU enters the guest for the first time (Linux 6.12,
//! `kvm_mmu_post_init_vm`): it is a thread of QEMU's, born in the vCPU's cgroup with the vCPU's one CPU. There is no event for
//! it, and the audit is up to half a minute away. So after an attach `vcpu/` is read a few times, and a thread that is not a vCPU
//! wakes the engine, whose pass moves it to float.

use std::collections::BTreeSet;
use std::time::Duration;

use stelia_node::System;
use stelia_node::cgroup::{CgroupPath, File, numbers};
use tokio::time::sleep;

/// Between one look and the next: the runner lets the guest run within milliseconds of the answer, an operator who starts it by
/// hand within seconds.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(600),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// Look at `vcpu`, where only the threads `attached` belong, and wake the engine for any other.
pub(super) fn look(system: System, vcpu: CgroupPath, attached: BTreeSet<i32>, tell: impl Fn() + Send + 'static) {
    tokio::spawn(async move {
        for pause in PAUSES {
            sleep(pause).await;
            // Gone, or not threaded any more: nothing is promised there now.
            let Ok(text) = system.cgroups.read(&vcpu, File::Threads) else {
                return;
            };
            if numbers(&text).iter().any(|thread| !attached.contains(thread)) {
                tell();
            }
        }
    });
}
