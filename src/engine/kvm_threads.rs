//! Threads that KVM makes just after a guest has begun to run.
//!
//! KVM makes its huge page recovery thread when a vCPU enters the guest for the first time (Linux 6.12, `kvm_mmu_post_init_vm`). It is
//! a thread of QEMU's process, and begins in the vCPU's cgroup, on the vCPU's one CPU. The kernel has no event for it, and the next audit
//! may be half a minute away. So after an attach `vcpu/` is read a few times. A thread there that is not a vCPU wakes the engine, which moves
//! it to float.

use std::collections::BTreeSet;
use std::time::Duration;

use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupPath, File, numbers};
use tokio::time::sleep;

/// The pauses between the readings. The runner starts the guest within milliseconds of the answer, an operator by hand within seconds.
const READ_PAUSES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(600),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// Read the threads in `vcpu` a few times, and call `wake` whenever there are others than `attached`.
pub(super) fn watch_for(system: System, vcpu: CgroupPath, attached: BTreeSet<i32>, wake: impl Fn() + Send + 'static) {
    tokio::spawn(async move {
        for pause in READ_PAUSES {
            sleep(pause).await;
            // The cgroup is gone or not threaded any more: the VM is not isolated.
            let Ok(text) = system.cgroups.read(&vcpu, File::Threads) else {
                return;
            };
            if numbers(&text).iter().any(|thread| !attached.contains(thread)) {
                wake();
            }
        }
    });
}
