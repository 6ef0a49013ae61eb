//! A line whose drivers come and go is one interrupt; a number that is given anew is another one.

use super::*;

/// Something that happens to line 24, or to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Joins,
    Leaves,
    /// The first driver leaves: the one that joined is alone, or none is left.
    FirstLeaves,
    VmEnds,
    /// The program ends and begins again: what it has is the record.
    Restarts,
}

const STEPS: [Step; 5] = [
    Step::Joins,
    Step::Leaves,
    Step::FirstLeaves,
    Step::VmEnds,
    Step::Restarts,
];

fn orders(left: &[Step]) -> Vec<Vec<Step>> {
    if left.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let mut rest = left.to_vec();
        let step = rest.remove(at);
        let rest = orders(&rest).into_iter();
        rest.map(move |mut rest| {
            rest.insert(0, step);
            rest
        })
    };
    (0..left.len()).flat_map(first).collect()
}

fn change(kernel: &FakeKernel, drivers: impl FnOnce(&mut Vec<String>)) {
    kernel.tree().change_irq(24, |one| {
        let mut names: Vec<String> = one
            .actions
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        drivers(&mut names);
        one.actions = names.join(",");
    });
}

#[test]
fn whatever_drivers_share_a_line_and_whoever_restarts_when_its_mask_is_as_it_was() {
    for steps in orders(&STEPS) {
        let (kernel, mut memory) = (kernel(), RoundHistory::default());
        // No default: what heals by itself would hide that the base is lost.
        kernel.tree().foreign(24, &set("0,2")).expect("set");
        let mut order = order(&[("a", "2-3")]);
        round(&kernel, &order, &mut memory);
        assert_eq!(mask(&kernel, 24), "0");
        for step in &steps {
            match step {
                Step::Joins => change(&kernel, |names| names.push("ahci".into())),
                Step::Leaves => change(&kernel, |names| names.retain(|name| name != "ahci")),
                Step::FirstLeaves => change(&kernel, |names| names.retain(|name| name == "ahci")),
                Step::VmEnds => order = none(),
                Step::Restarts => memory = RoundHistory::default(),
            }
            round(&kernel, &order, &mut memory);
            let wanted = if order == none() { "0,2" } else { "0" };
            assert_eq!(mask(&kernel, 24), wanted, "{steps:?} at {step:?}");
        }
        assert!(Record::load(&kernel).expect("a record").is_empty(), "{steps:?}");
    }
}

#[test]
fn a_driver_that_takes_over_a_line_nobody_had_has_its_base() {
    let (kernel, mut memory) = (kernel(), RoundHistory::default());
    kernel.tree().foreign(24, &set("0,2")).expect("set");
    let on = order(&[("a", "2-3")]);
    for names in ["eth0", "", "ahci", "", "eth1"] {
        change(&kernel, |drivers| *drivers = vec![names.into()]);
        round(&kernel, &on, &mut memory);
        assert_eq!(mask(&kernel, 24), "0");
    }
    round(&kernel, &none(), &mut memory);
    assert_eq!(mask(&kernel, 24), "0,2");
}

#[test]
fn a_number_that_is_freed_and_given_anew_has_the_base_that_it_would_have_had() {
    // By another driver, by another device, and by the same one: with the program ended meanwhile or not.
    for restarts in [false, true] {
        for (name, hwirq) in [("nvme1q0", 0), ("eth0-24", 5), ("nvme1q0", 5), ("eth0-24", 0)] {
            let (kernel, mut memory) = (kernel(), RoundHistory::default());
            kernel.tree().foreign(24, &set("3")).expect("set");
            let on = order(&[("a", "2-3")]);
            round(&kernel, &on, &mut memory);
            kernel.tree().remove_irq(24);
            kernel.tree().add_irq(24, name, Some(1));
            kernel.tree().change_irq(24, |one| one.hwirq = hwirq);
            if restarts {
                memory = RoundHistory::default();
            }
            round(&kernel, &on, &mut memory);
            assert_eq!(mask(&kernel, 24), "4-7", "{name} {hwirq}");
            round(&kernel, &none(), &mut memory);
            assert_eq!(
                mask(&kernel, 24),
                "4-7",
                "{name} {hwirq}: not the base of the one before"
            );
            // And on the node of the VM: without its CPUs now, and with them later.
            round(&kernel, &on, &mut memory);
            kernel.tree().remove_irq(24);
            kernel.tree().add_irq(24, name, Some(0));
            kernel.tree().change_irq(24, |one| one.hwirq = hwirq);
            round(&kernel, &on, &mut memory);
            assert_eq!(mask(&kernel, 24), "0-1", "{name} {hwirq}");
            round(&kernel, &none(), &mut memory);
            assert_eq!(mask(&kernel, 24), "0-3", "{name} {hwirq}");
        }
    }
}
