//! A mask as wanted is believed when the counts stop.

use super::*;

/// 24 fires on CPU 2, which a VM gets.
fn firing() -> (FakeKernel, RoundHistory, Order) {
    let kernel = kernel();
    kernel.tree().change_irq(24, |one| one.effective = 2);
    kernel.tree().fire(24);
    (kernel, RoundHistory::default(), order(&[("a", "2-3")]))
}

#[test]
fn the_first_interrupt_after_the_write_may_still_arrive_at_the_old_cpu() {
    let (kernel, mut memory, order) = firing();
    round(&kernel, &order, &mut memory);
    for rounds_before in [0, 2] {
        // when: it comes at once, or long after the mask was seen as wanted
        for _ in 0..rounds_before {
            clean(&round(&kernel, &order, &mut memory));
        }
        kernel.tree().fire(24);
        clean(&round(&kernel, &order, &mut memory));
        for _ in 0..3 {
            kernel.tree().fire(24);
            clean(&round(&kernel, &order, &mut memory));
        }
        assert_ne!(kernel.tree().interrupts.all[&24].effective, 2);
        // given: from the beginning
        round(&kernel, &none(), &mut memory);
        kernel.tree().change_irq(24, |one| one.effective = 2);
        round(&kernel, &order, &mut memory);
    }
}

#[test]
fn one_that_fires_there_although_its_mask_is_as_wanted_is_told_with_its_count() {
    // given: the controller does not do as it is told
    let (kernel, mut memory, order) = firing();
    let disobey = |times: u32| {
        for _ in 0..times {
            kernel
                .tree()
                .change_irq(24, |one| (one.effective, one.moves_to) = (2, None));
            kernel.tree().fire(24);
        }
    };
    round(&kernel, &order, &mut memory);
    disobey(5);
    clean(&round(&kernel, &order, &mut memory));
    disobey(2);
    let report = round(&kernel, &order, &mut memory);
    // then: all since it was first wanted elsewhere
    assert_eq!(whys(&report), [(24, RemainingCause::StillFires, "2".into(), 7)]);
    // when: it stops
    let later: Vec<usize> = (0..4)
        .map(|_| round(&kernel, &order, &mut memory).remaining.len())
        .collect();
    assert_eq!(later, [1, 1, 0, 0]);
}

#[test]
fn one_at_a_time_is_told_as_well() {
    let (kernel, mut memory, order) = firing();
    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(round(&kernel, &order, &mut memory).remaining.len());
        kernel
            .tree()
            .change_irq(24, |one| (one.effective, one.moves_to) = (2, None));
        kernel.tree().fire(24);
    }
    assert_eq!(told, [0, 0, 0, 1, 1], "the first after the mask was seen is forgiven");
}

#[test]
fn what_fired_before_a_vm_had_the_cpu_does_not_count() {
    // given: a VM elsewhere, and an interrupt that fires on CPU 2
    let (kernel, mut memory, _) = firing();
    round(&kernel, &order(&[("b", "6")]), &mut memory);
    for _ in 0..9 {
        kernel.tree().fire(24);
    }
    kernel.tree().add_managed(50, "nvme0q3", &set("2"));
    kernel.tree().fire(50);
    let both = order(&[("a", "2-3"), ("b", "6")]);
    let report = round(&kernel, &both, &mut memory);
    assert_eq!(whys(&report), [(50, RemainingCause::Managed, "2".into(), 0)]);
}

#[test]
fn a_counter_counts_from_when_the_vm_had_the_cpu_though_it_wraps_or_the_cpu_was_offline() {
    for (before, offline) in [(u32::MAX, false), (4711, true)] {
        let (kernel, mut memory, order) = firing();
        kernel.tree().add_managed(50, "nvme0q3", &set("2"));
        kernel.tree().change_irq(50, |one| one.counts = [(2, before)].into());
        round(&kernel, &order, &mut memory);
        if offline {
            kernel.tree().offline(2);
            round(&kernel, &order, &mut memory);
            kernel.tree().online(2);
        }
        for count in [0, 2, 4] {
            let report = round(&kernel, &order, &mut memory);
            assert_eq!(whys(&report), [(50, RemainingCause::Managed, "2".into(), count)]);
            kernel.tree().fire(50);
            kernel.tree().fire(50);
        }
    }
}
