//! On a kernel in memory.

mod counted;
mod many;
mod shared;
mod undone;

use rustix::io::Errno;
use stelia_api::quiet::{Remaining, RemainingCause};

use super::*;
use crate::interrupts::read::{DEFAULT, mask_path};
use crate::interrupts::saved_masks::NAME;
use crate::order::OrderedVm;
use crate::testing::{Call, FakeKernel, set, vm};

/// VMs by name with their CPUs; all others of eight are shared.
fn order(vms: &[(&str, &str)]) -> Order {
    let vms: BTreeMap<String, OrderedVm> = vms.iter().map(|(pod, cpus)| ((*pod).into(), vm(cpus))).collect();
    let shared = vms.values().fold(set("0-7"), |left, vm| left.difference(&vm.cpus));
    Order {
        steer: true,
        shared,
        vms,
        ..Order::default()
    }
}

fn none() -> Order {
    Order {
        shared: set("0-7"),
        steer: true,
        ..Order::default()
    }
}

/// Eight CPUs on two nodes; interrupts 24 to 27 of devices on either.
fn kernel() -> FakeKernel {
    let kernel = FakeKernel::with_nodes(&[set("0-3"), set("4-7")]);
    for (irq, node) in [(24, 0), (25, 0), (26, 1), (27, 1)] {
        kernel.tree().add_irq(irq, &format!("eth0-{irq}"), Some(node));
    }
    kernel
}

fn round(kernel: &FakeKernel, order: &Order, memory: &mut RoundHistory) -> Report {
    let mut report = Report::default();
    carry_out(kernel.system(), order, memory, &mut report);
    report
}

fn mask(kernel: &FakeKernel, irq: u32) -> String {
    kernel.tree().interrupts.all[&irq].mask.to_string()
}

fn masks(kernel: &FakeKernel) -> Vec<(u32, String)> {
    let tree = kernel.tree();
    tree.interrupts
        .all
        .iter()
        .map(|(irq, one)| (*irq, one.mask.to_string()))
        .collect()
}

fn default(kernel: &FakeKernel) -> String {
    kernel.tree().get(DEFAULT).expect("a mask").into()
}

fn whys(report: &Report) -> Vec<(u32, RemainingCause, String, u64)> {
    let one = |one: &Remaining| (one.irq, one.why, one.cpus.to_string(), one.count);
    report.remaining.iter().map(one).collect()
}

fn clean(report: &Report) {
    assert_eq!(
        (report.problems.as_slice(), report.remaining.as_slice()),
        (&[][..], &[][..])
    );
}

#[test]
fn interrupts_leave_the_cpus_of_vms_and_the_same_order_again_writes_nothing() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    let first = round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    assert_eq!((first.interrupts, first.moved, first.writes), (4, 2, 3));
    assert_eq!(
        ["0-1", "0-1", "4-7", "4-7"],
        *masks(&kernel).iter().map(|(_, mask)| mask).collect::<Vec<_>>()
    );
    assert_eq!(default(&kernel), "f3");
    clean(&first);
    let second = round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    assert_eq!((second.interrupts, second.moved, second.writes), (4, 2, 0));
    assert_eq!(kernel.tree().saves, 1, "the record, before all writes");
}

#[test]
fn nothing_is_read_or_kept_where_nothing_is_steered() {
    let kernel = kernel();
    kernel.tree().fail(Call::List, "/proc/irq", Errno::IO, None);
    let mut unsteered = order(&[("a", "2")]);
    unsteered.steer = false;
    for order in [none(), unsteered] {
        assert_eq!(round(&kernel, &order, &mut RoundHistory::default()), Report::default());
    }
    assert_eq!(kernel.tree().saves, 0);
}

#[test]
fn without_a_record_that_can_be_read_or_kept_no_mask_is_touched() {
    for (call, begins) in [(Some(Call::Load), "read"), (Some(Call::Save), "write"), (None, "read")] {
        let kernel = kernel();
        match call {
            Some(call) => kernel.tree().fail(call, NAME, Errno::IO, None),
            None => _ = kernel.tree().saved.insert(NAME.into(), "{".into()),
        }
        let report = round(&kernel, &order(&[("a", "2-3")]), &mut RoundHistory::default());
        let begins = format!("{begins} the record {NAME}: ");
        assert!(report.problems[0].text.starts_with(&begins), "{report:?}");
        assert!(kernel.tree().writes.is_empty());
    }
}

#[test]
fn what_is_needed_to_decide_and_cannot_be_read_is_named_and_nothing_is_written() {
    for path in ["/sys/devices/system/cpu/online", DEFAULT] {
        let kernel = kernel();
        kernel.tree().remove(path);
        let report = round(&kernel, &order(&[("a", "2-3")]), &mut RoundHistory::default());
        let begins = format!("read {path}: ");
        assert!(report.problems[0].text.starts_with(&begins), "{report:?}");
        assert!(kernel.tree().writes.is_empty());
    }
}

#[test]
fn without_counts_interrupts_are_steered_all_the_same() {
    let kernel = kernel();
    kernel.tree().fail(Call::Read, "/proc/interrupts", Errno::IO, None);
    let report = round(&kernel, &order(&[("a", "2-3")]), &mut RoundHistory::default());
    assert_eq!((report.moved, report.problems.len()), (2, 1));
}

#[test]
fn an_interrupt_of_a_node_without_shared_cpus_goes_to_another() {
    let kernel = kernel();
    round(&kernel, &order(&[("a", "0-3")]), &mut RoundHistory::default());
    assert_eq!((mask(&kernel, 24), mask(&kernel, 26)), ("4-7".into(), "4-7".into()));
}

#[test]
fn a_vms_own_device_fires_on_its_cpus_and_any_other_vfio_device_elsewhere() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    kernel.tree().add_irq(40, "vfio-msix[0](0000:3b:00.0)", Some(0));
    kernel.tree().add_irq(41, "vfio-msix[0](0000:3c:00.0)", Some(0));
    let mut order = order(&[("a", "2-3"), ("b", "4")]);
    let vm = order.vms.get_mut("a").expect("a VM");
    vm.own_devices.insert("0000:3b:00.0".into());
    let report = round(&kernel, &order, &mut memory);
    assert_eq!((mask(&kernel, 40), mask(&kernel, 41)), ("2-3".into(), "0-1".into()));
    clean(&report);
    // when: it fires there, as it should
    for _ in 0..3 {
        kernel.tree().fire(40);
        clean(&round(&kernel, &order, &mut memory));
    }
    // when: the VM's CPUs go offline and come back
    kernel.tree().offline(2);
    kernel.tree().offline(3);
    round(&kernel, &order, &mut memory);
    assert_eq!(mask(&kernel, 40), "0-1", "as any other, of its base");
    kernel.tree().online(2);
    clean(&round(&kernel, &order, &mut memory));
    assert_eq!(mask(&kernel, 40), "2-3");
}

#[test]
fn a_mask_that_somebody_else_wrote_stays_if_it_keeps_off_and_is_theirs_from_then_on() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    kernel.tree().foreign(24, &set("0")).expect("set");
    let report = round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    assert_eq!((report.writes, report.moved), (0, 1));
    round(&kernel, &none(), &mut memory);
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("0".into(), "0-3".into()));
}

#[test]
fn a_mask_written_again_and_again_is_repaired_each_time_and_reported_from_the_third() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    let order = order(&[("a", "2-3")]);
    round(&kernel, &order, &mut memory);
    let reports: Vec<Report> = (0..4)
        .map(|_| {
            kernel.tree().foreign(24, &set("1-2")).expect("set");
            round(&kernel, &order, &mut memory)
        })
        .collect();
    let overwritten = vec![(24, RemainingCause::Overwritten, "2".into(), 0)];
    assert_eq!(
        reports.iter().map(whys).collect::<Vec<_>>(),
        [vec![], vec![], overwritten.clone(), overwritten]
    );
    assert!(reports.iter().all(|report| report.writes == 1));
    assert_eq!(mask(&kernel, 24), "0-1");
    // when: it stops
    clean(&round(&kernel, &order, &mut memory));
    // then: the base is what it was
    round(&kernel, &none(), &mut memory);
    assert_eq!(mask(&kernel, 24), "0-3");
}

#[test]
fn a_mask_widened_because_its_last_cpu_went_offline_is_repaired() {
    // given: one that we left alone, and one whose only CPU is a VM's
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    kernel.tree().foreign(24, &set("1")).expect("set");
    kernel.tree().foreign(25, &set("2")).expect("set");
    let order = order(&[("a", "2-3")]);
    round(&kernel, &order, &mut memory);
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("1".into(), "0-1".into()));
    kernel.tree().offline(0);
    kernel.tree().offline(1);
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("2-7".into(), "2-7".into()));
    clean(&round(&kernel, &order, &mut memory));
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("4-7".into(), "4-7".into()));
    // when: back
    kernel.tree().online(0);
    kernel.tree().online(1);
    clean(&round(&kernel, &order, &mut memory));
    // It stays broad, and ours is repaired.
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("4-7".into(), "0-1".into()));
    // As the kernel had left them.
    round(&kernel, &none(), &mut memory);
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("2-7".into(), "2".into()));
}

#[test]
fn a_vms_cpus_that_go_offline_and_return_change_nothing() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    let order = order(&[("a", "2-3")]);
    round(&kernel, &order, &mut memory);
    kernel.tree().offline(2);
    assert_eq!(round(&kernel, &order, &mut memory).writes, 0);
    kernel.tree().online(2);
    let report = round(&kernel, &order, &mut memory);
    assert_eq!((report.writes, report.moved), (0, 2));
}

#[test]
fn a_managed_interrupt_is_tried_once_and_told_if_the_kernel_placed_it_there() {
    for (read_only, errno) in [(true, None), (false, None), (false, Some(Errno::IO))] {
        // given: one CPU each of a VM, one queue of both, one elsewhere
        let (kernel, mut memory) = (kernel(), RoundHistory::default());
        kernel.tree().interrupts.managed_read_only = read_only;
        for (irq, mask) in [(50, "2"), (51, "1-2"), (52, "0")] {
            kernel.tree().add_managed(irq, &format!("nvme0q{irq}"), &set(mask));
            if let Some(errno) = errno {
                kernel.tree().fail(Call::Write, &mask_path(irq), errno, Some(1));
            }
        }
        let order = order(&[("a", "2-3")]);
        let first = round(&kernel, &order, &mut memory);
        assert_eq!(whys(&first), [(50, RemainingCause::Managed, "2".into(), 0)]);
        assert!(first.remaining[0].text.contains("has not fired"), "{first:?}");
        // when: I/O is submitted on the VM's CPU
        kernel.tree().fire(50);
        kernel.tree().change_irq(51, |one| one.effective = 2);
        kernel.tree().fire(51);
        kernel.tree().heal();
        kernel.tree().fail(Call::Write, &mask_path(50), Errno::PERM, None);
        let second = round(&kernel, &order, &mut memory);
        // then: counted, not written again
        let managed = |irq| (irq, RemainingCause::Managed, "2".into(), 1);
        assert_eq!(whys(&second), [managed(50), managed(51)]);
        assert_eq!((second.writes, mask(&kernel, 50)), (0, "2".into()));
        assert!(second.problems.is_empty());
        clean(&round(&kernel, &none(), &mut memory));
    }
}

#[test]
fn where_vectors_are_used_up_another_place_is_taken_and_kept() {
    // given: CPU 0 and 1 have no vector left
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    kernel.tree().change_irq(24, |one| one.effective = 2);
    kernel.tree().interrupts.vectors.extend([(0, 0), (1, 0)]);
    kernel.tree().remove_irq(25);
    let order = order(&[("a", "2-3")]);
    let report = round(&kernel, &order, &mut memory);
    // then: the shared CPUs as a whole
    clean(&report);
    assert_eq!((mask(&kernel, 24), report.moved), ("0-1,4-7".into(), 1));
    // when: again, and after a crash
    assert_eq!(round(&kernel, &order, &mut memory).writes, 0);
    round(&kernel, &none(), &mut RoundHistory::default());
    assert_eq!(mask(&kernel, 24), "0-3");
}

#[test]
fn where_no_place_has_a_vector_it_is_told_and_tried_again() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    kernel.tree().change_irq(24, |one| one.effective = 2);
    kernel.tree().remove_irq(25);
    kernel.tree().interrupts.vectors = (0..8).map(|cpu| (cpu, 0)).collect();
    let order = order(&[("a", "2-3")]);
    let report = round(&kernel, &order, &mut memory);
    assert_eq!(whys(&report), [(24, RemainingCause::NoVector, "2-3".into(), 0)]);
    let text = "write \"0-1\" to /proc/irq/24/smp_affinity_list: No space left on device (os error 28)";
    assert_eq!(report.remaining[0].text, text);
    assert_eq!(mask(&kernel, 24), "0-3");
    kernel.tree().interrupts.vectors.clear();
    clean(&round(&kernel, &order, &mut memory));
    assert_eq!(mask(&kernel, 24), "0-1");
}

#[test]
fn a_busy_interrupt_is_tried_again_and_then_left_to_the_next_round() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    let order = order(&[("a", "2-3")]);
    kernel.tree().fail(Call::Write, &mask_path(24), Errno::BUSY, Some(2));
    kernel.tree().fail(Call::Write, &mask_path(25), Errno::BUSY, Some(3));
    let report = round(&kernel, &order, &mut memory);
    assert_eq!(mask(&kernel, 24), "0-1");
    assert_eq!(whys(&report), [(25, RemainingCause::Refused, "2-3".into(), 0)]);
    clean(&round(&kernel, &order, &mut memory));
    assert_eq!(mask(&kernel, 25), "0-1");
}

#[test]
fn what_the_kernel_refuses_is_named_with_path_value_and_cause() {
    for errno in [Errno::INVAL, Errno::RANGE, Errno::ACCESS, Errno::ROFS] {
        let (kernel, mut memory) = (kernel(), RoundHistory::default());
        kernel.tree().fail(Call::Write, &mask_path(25), errno, Some(1));
        let report = round(&kernel, &order(&[("a", "2-3")]), &mut memory);
        let named = "write \"0-1\" to /proc/irq/25/smp_affinity_list: ";
        assert_eq!(
            report.problems[0].text,
            format!("{named}{}", std::io::Error::from(errno))
        );
        assert_eq!(whys(&report), [(25, RemainingCause::Refused, "2-3".into(), 0)]);
        assert_eq!(mask(&kernel, 24), "0-1", "the others are moved");
        clean(&round(&kernel, &order(&[("a", "2-3")]), &mut memory));
        assert_eq!(mask(&kernel, 25), "0-1");
    }
}

#[test]
fn one_that_goes_away_while_it_is_written_is_no_problem() {
    let kernel = kernel();
    kernel.tree().fail(Call::Write, &mask_path(24), Errno::NOENT, None);
    clean(&round(&kernel, &order(&[("a", "2-3")]), &mut RoundHistory::default()));
}

#[test]
fn new_interrupts_are_steered_and_reused_numbers_are_new_interrupts() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    let order = order(&[("a", "2-3")]);
    round(&kernel, &order, &mut memory);
    // when: one that ignores the default, as virtio-net does, and another device behind number 24
    kernel.tree().add_irq(60, "virtio0-input.0", None);
    kernel.tree().foreign(60, &set("2")).expect("set");
    kernel.tree().remove_irq(24);
    kernel.tree().add_irq(24, "nvme1q0", Some(1));
    kernel.tree().foreign(24, &set("3-4")).expect("set");
    round(&kernel, &order, &mut memory);
    assert_eq!((mask(&kernel, 60), mask(&kernel, 24)), ("0-1,4-7".into(), "4".into()));
    round(&kernel, &none(), &mut memory);
    assert_eq!((mask(&kernel, 60), mask(&kernel, 24)), ("2".into(), "3-4".into()));
}
