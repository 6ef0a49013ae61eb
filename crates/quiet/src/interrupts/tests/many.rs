//! A hundred VMs and two hundred interrupts: writes only where something differs.

use super::*;
use crate::testing::interrupts::Irq;

const VMS: u32 = 100;

/// Two CPUs each, from CPU 16 on; VM `n` and its neighbours.
fn vm(number: u32) -> OrderedVm {
    OrderedVm {
        cpus: (16 + 2 * number..18 + 2 * number).collect(),
        ..OrderedVm::default()
    }
}

fn vms(numbers: impl Iterator<Item = u32>) -> Order {
    let vms = numbers.map(|number| (format!("pod-{number:03}"), vm(number))).collect();
    Order {
        steer: true,
        shared: CpuSet::below(16),
        vms,
        ..Order::default()
    }
}

/// Half of 200 interrupts may fire anywhere in a block of 32 CPUs, half on one CPU.
fn crowd() -> FakeKernel {
    let kernel = FakeKernel::new(256);
    for irq in 24..224 {
        kernel.tree().add_irq(irq, &format!("dev-{irq}"), None);
        let block = irq % 8 * 32;
        let mask = if irq % 2 == 0 {
            (block..block + 32).collect()
        } else {
            CpuSet::from_iter([irq])
        };
        kernel.tree().foreign(irq, &mask).expect("set");
    }
    kernel
}

/// The masks that have CPUs of VM `n`.
fn concerned(kernel: &FakeKernel, number: u32) -> Vec<String> {
    let cpus = vm(number).cpus;
    let tree = kernel.tree();
    let all = tree
        .interrupts
        .all
        .iter()
        .filter(|(_, one)| !one.mask.is_disjoint(&cpus));
    all.map(|(irq, _)| mask_path(*irq)).collect()
}

#[test]
fn one_vm_more_or_less_writes_only_what_concerns_it() {
    let (kernel, mut memory) = (crowd(), RoundHistory::default());
    let before = masks(&kernel);
    let concerned = concerned(&kernel, 99);
    assert!(concerned.len() > 1 && concerned.len() < 40, "{concerned:?}");
    let first = round(&kernel, &vms(0..VMS - 1), &mut memory);
    clean(&first);
    let without = masks(&kernel);
    kernel.tree().writes.clear();
    let report = round(&kernel, &vms(0..VMS), &mut memory);
    let mut written: Vec<String> = kernel.tree().writes.drain(..).map(|(path, _)| path).collect();
    assert_eq!(written.remove(0), DEFAULT);
    assert_eq!(written, concerned);
    assert_eq!(report.writes as usize, 1 + concerned.len());
    let exclusive = Cpus::new(&vms(0..VMS), CpuSet::below(256)).exclusive;
    let disturbs = |one: &&Irq| !one.mask.is_disjoint(&exclusive);
    assert_eq!(kernel.tree().interrupts.all.values().filter(disturbs).count(), 0);
    // when: the same order again
    let second = round(&kernel, &vms(0..VMS), &mut memory);
    assert_eq!((second.interrupts, second.writes, second.moved), (200, 0, report.moved));
    // when: the same VM ends
    round(&kernel, &vms(0..VMS - 1), &mut memory);
    // then: only what it had is widened
    assert_eq!(masks(&kernel), without);
    assert_eq!(kernel.tree().writes.len(), 1 + concerned.len());
    // when: all end
    clean(&round(&kernel, &none(), &mut memory));
    assert_eq!(masks(&kernel), before);
}
