//! Logs which VMs are adopted and which are not, and shows the latter in the view.

use std::time::Instant;

use stelia_kernel::cgroup::CgroupPath;
use stelia_model as model;

use super::scan::Adoptable;
use super::task::Adoption;
use crate::journal::{self, JournalPod, about};

impl Adoption {
    pub(super) fn log_adopted(&self, origin: &CgroupPath, vm: &Adoptable, now: Instant) {
        let Some(starting_vm) = self.starting.get(origin) else {
            return;
        };
        let pod = JournalPod::new(vm.pod.as_str(), vm.pod_name.as_ref());
        let placed = if vm.vm.is_unpinned() {
            "; its vCPUs had not each been pinned to a CPU of its own, and were placed"
        } else {
            ""
        };
        let (what, vcpus) = match vm.vm.vmm {
            Some(_) => ("the VM".to_owned(), format!(": {} vCPUs", vm.vm.threads.len())),
            None => (format!("container {}", vm.container), String::new()),
        };
        about!(
            info,
            journal::ADOPTED,
            pod,
            STELIA_RULE = vm.vm.rule.name,
            "adopted {what} of pod {pod} by rule {}{vcpus}, {} ms after it was found{placed}",
            vm.vm.rule.name,
            starting_vm.age(now).as_millis()
        );
    }

    /// Log and show that a VM is not adopted. A reason is logged once, until it changes. `visible`: the reason as its pod may read it.
    pub(super) fn refuse(&mut self, origin: CgroupPath, refused: model::Unadopted, visible: &str) {
        let known = self.unadopted.get(&origin);
        let same = known.is_some_and(|known| known.reason == refused.reason && known.text == refused.text);
        if same {
            return;
        }
        let pod = JournalPod::new(refused.pod.as_str(), refused.pod_name.as_ref());
        about!(
            warn,
            journal::NOT_ADOPTED,
            pod,
            STELIA_RULE = refused.rule,
            STELIA_ERROR = refused.reason,
            STELIA_REASON = refused.text,
            "pod {pod} is not adopted by rule {}: {}",
            refused.rule,
            refused.text
        );
        let message = format!("not adopted by rule {}: {}: {visible}", refused.rule, refused.reason);
        self.engine
            .note(&refused.pod, refused.pod_name.clone(), "Refused", message);
        let since_us = known.map_or(refused.since_us, |known| known.since_us);
        self.unadopted.insert(origin, model::Unadopted { since_us, ..refused });
        self.show();
    }
}
