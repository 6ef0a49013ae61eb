//! The metrics of the ledger: what the daemon booked since it began to keep it.

use stelia_api::ledger::{LedgerSummary, LedgerVm};

use super::definitions::{Definition, POD};
use super::families::{Samples, Seen, Value, nanoseconds, one, seconds};

pub(super) const KEPT: Definition = Definition::gauge(
    "stelia_ledger_kept",
    &[],
    "Whether the ledger is switched on and written: 1 or 0.",
    |seen| {
        let kept = |ledger: &LedgerSummary| u64::from(ledger.enabled && ledger.problem.is_none());
        one(seen
            .described
            .node
            .ledger
            .as_ref()
            .map(|ledger| Value::Count(kept(ledger))))
    },
);

pub(super) const SIZE: Definition = Definition::gauge(
    "stelia_ledger_size_bytes",
    &[],
    "How large the ledger's files are together.",
    |seen| one(enabled(seen).map(|ledger| Value::Count(ledger.bytes))),
);

pub(super) const HEAD: Definition = Definition::gauge(
    "stelia_ledger_head_info",
    &["day", "entry", "hash", "key"],
    "Always 1: the ledger's last signed head, the hash of the entry with which a day ended. Who keeps it notices later changes.",
    |seen| {
        let head = enabled(seen).filter(|ledger| !ledger.hash.is_empty());
        let labels = head.map(|ledger| {
            let LedgerSummary {
                day, seq, hash, key, ..
            } = ledger;
            vec![day.clone(), seq.to_string(), hash.clone(), key.clone()]
        });
        labels.map(|labels| (labels, Value::Count(1))).into_iter().collect()
    },
);

pub(super) const OTHER_TASKS: Definition = Definition::counter(
    "stelia_ledger_other_tasks",
    &["pod_uid", "namespace", "pod", "bound"],
    "How often a task that is not an instance's began to run on its exclusive CPUs: bound is least or most; where both grow alike the count is exact.",
    |seen| {
        let mut samples = Samples::new();
        for (uid, vm) in vms(seen) {
            for (bound, count) in [("least", vm.other_tasks_least), ("most", vm.other_tasks_most)] {
                let labels = seen.pod_labels(uid).into_iter().chain([bound.to_owned()]);
                samples.push((labels.collect(), Value::Count(count)));
            }
        }
        samples
    },
);

pub(super) const DEVICES: Definition = Definition::counter(
    "stelia_ledger_device_interrupts",
    POD,
    "Interrupts on an instance's exclusive CPUs of devices that are not its own.",
    |seen| of_vms(seen, |vm| Value::Count(vm.devices)),
);

pub(super) const DELAY: Definition = Definition::counter(
    "stelia_ledger_delay_seconds",
    POD,
    "How long an instance's vCPUs could have run and did not; no more was lost to tasks, and waking up is part of it.",
    |seen| of_vms(seen, |vm| nanoseconds(vm.delay_ns)),
);

pub(super) const PROMISED: Definition = Definition::counter(
    "stelia_ledger_promised_cpu_seconds",
    POD,
    "CPU time that an instance had CPUs of its own for.",
    |seen| of_vms(seen, |vm| seconds(vm.promised_us)),
);

pub(super) const COVERED: Definition = Definition::counter(
    "stelia_ledger_covered_cpu_seconds",
    POD,
    "The part of it that lies between two readings of the same counters; of the rest nothing is known.",
    |seen| of_vms(seen, |vm| seconds(vm.covered_us)),
);

pub(super) const INTRUSIONS: Definition = Definition::counter(
    "stelia_ledger_intrusions",
    POD,
    "How often a reading showed other tasks or other devices' interrupts on an instance's exclusive CPUs.",
    |seen| of_vms(seen, |vm| Value::Count(vm.intruded)),
);

fn enabled<'a>(seen: &Seen<'a>) -> Option<&'a LedgerSummary> {
    seen.described.node.ledger.as_ref().filter(|ledger| ledger.enabled)
}

fn vms<'a>(seen: &Seen<'a>) -> impl Iterator<Item = (&'a String, &'a LedgerVm)> {
    enabled(seen).into_iter().flat_map(|ledger| &ledger.vms)
}

fn of_vms(seen: &Seen<'_>, value: fn(&LedgerVm) -> Value) -> Samples {
    vms(seen).map(|(uid, vm)| (seen.pod_labels(uid), value(vm))).collect()
}
