//! Afterwards everything is as it was before.

use super::*;

#[test]
fn without_vms_or_steering_everything_is_as_it_was_in_reverse_order_and_nothing_is_kept() {
    let on = order(&[("a", "2-3"), ("b", "6")]);
    let mut unsteered = on.clone();
    unsteered.steer = false;
    for off in [none(), unsteered] {
        let (kernel, mut memory) = (kernel(), RoundHistory::default());
        let before = (masks(&kernel), default(&kernel));
        round(&kernel, &on, &mut memory);
        assert_ne!(masks(&kernel), before.0);
        kernel.tree().writes.clear();
        clean(&round(&kernel, &off, &mut memory));
        assert_eq!((masks(&kernel), default(&kernel)), before);
        let written: Vec<String> = kernel.tree().writes.drain(..).map(|(path, _)| path).collect();
        let reversed = [27, 26, 25, 24].map(mask_path).into_iter().chain([DEFAULT.into()]);
        assert_eq!(written, reversed.collect::<Vec<_>>());
        assert!(Record::load(&kernel).expect("a record").is_empty());
        // when: once more
        kernel.tree().fail(Call::List, "/proc/irq", Errno::IO, None);
        assert_eq!(round(&kernel, &off, &mut memory), Report::default());
    }
}

#[test]
fn what_somebody_else_wrote_meanwhile_is_not_undone() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    kernel.tree().foreign(24, &set("2")).expect("set");
    kernel.tree().put(DEFAULT, "1");
    round(&kernel, &none(), &mut memory);
    assert_eq!(
        (mask(&kernel, 24), mask(&kernel, 25), default(&kernel)),
        ("2".into(), "0-3".into(), "1".into())
    );
}

#[test]
fn a_crash_between_any_two_writes_leaves_everything_restorable() {
    let orders = [
        order(&[("a", "2-3")]),
        order(&[("a", "2-3"), ("b", "1,6")]),
        order(&[("b", "1,6")]),
        none(),
    ];
    // given: for each number of writes, a life that ends with it
    for allowed in 0..14 {
        let kernel = kernel();
        kernel.tree().add_irq(28, "fits only CPU 2", Some(0));
        kernel.tree().foreign(28, &set("2")).expect("set");
        let before = (masks(&kernel), default(&kernel));
        for (at, order) in orders.iter().enumerate() {
            // when: a process that dies after so many writes, in its at-th order
            let dies = allowed % orders.len() == at;
            if dies {
                let paths: Vec<String> = (24..29).map(mask_path).chain([DEFAULT.into()]).collect();
                let left = allowed / 2;
                for path in paths.iter().skip(left) {
                    kernel.tree().fail(Call::Write, path, Errno::INTR, None);
                }
            }
            round(&kernel, order, &mut RoundHistory::default());
            kernel.tree().heal();
        }
        // then: the next process undoes it
        round(&kernel, &none(), &mut RoundHistory::default());
        assert_eq!((masks(&kernel), default(&kernel)), before, "{allowed}");
        assert!(Record::load(&kernel).expect("a record").is_empty());
    }
}

#[test]
fn what_cannot_be_undone_is_named_and_tried_again() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    kernel.tree().fail(Call::Write, &mask_path(24), Errno::INVAL, None);
    kernel
        .tree()
        .fail(Call::Read, "/sys/kernel/irq/25/hwirq", Errno::IO, None);
    let report = round(&kernel, &none(), &mut memory);
    let problem = |text: &str| report.problems.iter().any(|one| one.text.starts_with(text));
    assert!(problem("write \"0-3\" to /proc/irq/24/"), "{report:?}");
    assert!(problem("read /sys/kernel/irq/25/hwirq: "), "{report:?}");
    kernel.tree().heal();
    clean(&round(&kernel, &none(), &mut memory));
    assert_eq!((mask(&kernel, 24), mask(&kernel, 25)), ("0-3".into(), "0-3".into()));
}

#[test]
fn a_base_that_is_offline_when_it_is_undone_becomes_any_cpu() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    kernel.tree().foreign(24, &set("2")).expect("set");
    round(&kernel, &order(&[("a", "2-3")]), &mut memory);
    kernel.tree().offline(2);
    clean(&round(&kernel, &none(), &mut memory));
    // Of its node: the kernel refuses CPU 2 alone.
    assert_eq!(mask(&kernel, 24), "0-1,3");
}

#[test]
fn one_without_a_driver_is_left_alone_and_undone_all_the_same() {
    // given: the driver of a line leaves after the mask was changed
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    let on = order(&[("a", "2-3")]);
    round(&kernel, &on, &mut memory);
    kernel.tree().change_irq(24, |one| one.actions.clear());
    let report = round(&kernel, &order(&[("a", "1-3")]), &mut memory);
    assert_eq!((report.interrupts, mask(&kernel, 24)), (3, "0-1".into()));
    round(&kernel, &none(), &mut memory);
    assert_eq!(mask(&kernel, 24), "0-3");
}

#[test]
fn one_born_meanwhile_gets_what_it_would_have_had() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    round(&kernel, &order(&[("a", "1-3"), ("b", "4-7")]), &mut memory);
    kernel.tree().add_irq(70, "hot-plugged", Some(1));
    assert_eq!(mask(&kernel, 70), "0");
    round(&kernel, &order(&[("a", "1-3"), ("b", "4-7")]), &mut memory);
    round(&kernel, &order(&[("a", "1-3")]), &mut memory);
    assert_eq!(mask(&kernel, 70), "4-7", "of its node");
}
