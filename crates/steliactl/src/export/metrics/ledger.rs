//! The metrics of the ledger: what the daemon recorded since it started the ledger.

use stelia_api::ledger::{LedgerSummary, LedgerVm};

use super::definitions::{Definition, POD};
use super::families::{MetricsInput, Samples, Value, nanoseconds, one, seconds};

pub(super) const LEDGER_PRESENT: Definition = Definition::gauge(
    "stelia_ledger_kept",
    &[],
    "Whether the ledger is switched on and written: 1 or 0.",
    |input| {
        let kept = |ledger: &LedgerSummary| u64::from(ledger.enabled && ledger.problem.is_none());
        one(Value::Count(kept(&input.described.node.ledger)))
    },
);

pub(super) const SIZE: Definition = Definition::gauge(
    "stelia_ledger_size_bytes",
    &[],
    "Total size of the ledger's files.",
    |input| one(enabled(input).map(|ledger| Value::Count(ledger.bytes))),
);

pub(super) const HEAD: Definition = Definition::gauge(
    "stelia_ledger_head_info",
    &["day", "entry", "hash", "key"],
    "Always 1: the ledger's last signed head, the hash of the last entry of a day. Store it elsewhere to detect later changes.",
    |input| {
        let head = enabled(input).filter(|ledger| !ledger.hash.is_empty());
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
    "Switch-ins of tasks that are not the instance's on its exclusive CPUs. The label bound is least or most; the count is exact if both grow equally.",
    |input| {
        let mut samples = Samples::new();
        for (uid, vm) in vms(input) {
            for (bound, count) in [("least", vm.other_tasks_least), ("most", vm.other_tasks_most)] {
                let labels = input.pod_labels(uid).into_iter().chain([bound.to_owned()]);
                samples.push((labels.collect(), Value::Count(count)));
            }
        }
        samples
    },
);

pub(super) const DEVICES: Definition = Definition::counter(
    "stelia_ledger_device_interrupts",
    POD,
    "Interrupts of devices that are not the instance's on its exclusive CPUs.",
    |input| of_vms(input, |vm| Value::Count(vm.devices)),
);

pub(super) const DELAY: Definition = Definition::counter(
    "stelia_ledger_delay_seconds",
    POD,
    "Time that an instance's vCPUs, or its container's tasks, were runnable and did not run. It includes wake-ups, and is an upper bound of the time lost to other tasks.",
    |input| of_vms(input, |vm| nanoseconds(vm.delay_ns)),
);

pub(super) const PROMISED: Definition = Definition::counter(
    "stelia_ledger_promised_cpu_seconds",
    POD,
    "CPU time for which an instance had exclusive CPUs.",
    |input| of_vms(input, |vm| seconds(vm.promised_us)),
);

pub(super) const COVERED: Definition = Definition::counter(
    "stelia_ledger_covered_cpu_seconds",
    POD,
    "The part of stelia_ledger_promised_cpu_seconds between two readings of the same counters. Nothing is known about the rest.",
    |input| of_vms(input, |vm| seconds(vm.covered_us)),
);

pub(super) const INTRUSIONS: Definition = Definition::counter(
    "stelia_ledger_intrusions",
    POD,
    "How often a reading showed other tasks or other devices' interrupts on an instance's exclusive CPUs.",
    |input| of_vms(input, |vm| Value::Count(vm.intruded)),
);

fn enabled<'a>(input: &MetricsInput<'a>) -> Option<&'a LedgerSummary> {
    Some(&*input.described.node.ledger).filter(|ledger| ledger.enabled)
}

fn vms<'a>(input: &MetricsInput<'a>) -> impl Iterator<Item = (&'a String, &'a LedgerVm)> {
    enabled(input).into_iter().flat_map(|ledger| &ledger.vms)
}

fn of_vms(input: &MetricsInput<'_>, value: fn(&LedgerVm) -> Value) -> Samples {
    vms(input).map(|(uid, vm)| (input.pod_labels(uid), value(vm))).collect()
}
