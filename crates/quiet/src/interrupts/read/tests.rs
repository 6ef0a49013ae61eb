use rustix::io::Errno;

use stelia_kernel::counters::interrupts::PATH;

use super::*;
use crate::testing::{Call, FakeKernel, set};

fn found(kernel: &FakeKernel) -> InterruptScan {
    let table = Table::parse(kernel.read(PATH).expect("text").as_bytes()).expect("a table");
    read(kernel, &table).expect("interrupts")
}

fn numbers(found: &InterruptScan) -> Vec<u32> {
    found.interrupts.iter().map(|one| one.identity.irq).collect()
}

#[test]
fn timer_cascade_and_the_cpus_own_interrupts_are_left_out() {
    let kernel = FakeKernel::new(4);
    for irq in [0, 2, 9, 48, 100] {
        kernel.tree().add_irq(irq, "x", None);
    }
    for irq in [0, 2] {
        kernel.tree().change_irq(irq, |one| one.chip = "IO-APIC".into());
    }
    kernel.tree().change_irq(48, |one| one.chip = "xen-percpu".into());
    assert_eq!(numbers(&found(&kernel)), [9, 100], "in the order of numbers");
}

#[test]
fn what_each_cpu_of_arm64_has_of_its_own_is_left_out_although_it_has_a_number() {
    // given: /proc/irq and the table of an arm64 host of KVM
    let kernel = FakeKernel::new(4);
    for (irq, actions, chip, hwirq) in [
        (1, "IPI", "GICv3", 0),
        (7, "IPI", "GICv3", 6),
        (9, "vgic", "GICv3", 25),
        (13, "arch_timer", "GICv3", 26),
        (20, "arm-smmu-v3-evtq", "GICv3", 65),
        (60, "vcpu", "GICv4.1-vpe", 3),
        (123, "nvme0q1", "ITS-PCI-MSIX-0000:01:00.0", 1),
    ] {
        kernel.tree().add_irq(irq, actions, None);
        kernel
            .tree()
            .change_irq(irq, |one| (one.chip, one.hwirq) = (chip.into(), hwirq));
    }
    assert_eq!(numbers(&found(&kernel)), [20, 123]);
}

#[test]
fn an_interrupt_has_identity_mask_and_the_cpus_of_its_node() {
    let kernel = FakeKernel::with_nodes(&[set("0-1"), set("2-3")]);
    kernel.tree().add_irq(26, "mlx5_comp0", Some(1));
    kernel.tree().add_irq(27, "", None);
    let found = found(&kernel);
    let [device, asleep] = found.interrupts.as_slice() else {
        panic!("{found:?}")
    };
    let identity = Identity {
        irq: 26,
        hwirq: "2".into(),
        actions: "mlx5_comp0".into(),
    };
    assert_eq!(
        (&device.identity, &device.mask, &device.local),
        (&identity, &set("2-3"), &set("2-3"))
    );
    assert_eq!((asleep.identity.actions.as_str(), &asleep.local), ("", &set("")));
}

#[test]
fn one_that_goes_away_meanwhile_is_no_problem_and_one_that_cannot_be_read_is() {
    let kernel = FakeKernel::new(2);
    for irq in [24, 25, 26] {
        kernel.tree().add_irq(irq, "x", None);
    }
    kernel
        .tree()
        .fail(Call::Read, "/sys/kernel/irq/24/hwirq", Errno::NOENT, None);
    kernel.tree().fail(Call::Read, &mask_path(25), Errno::ACCESS, None);
    let found = found(&kernel);
    assert_eq!(numbers(&found), [26]);
    assert_eq!(found.unread, BTreeSet::from([25]));
    assert_eq!(
        found.problems,
        ["read /proc/irq/25/smp_affinity_list: Permission denied (os error 13)"]
    );
}

#[test]
fn the_default_mask_is_hexadecimal_in_groups() {
    let kernel = FakeKernel::new(40);
    kernel.tree().put(DEFAULT, "ff,00000003");
    assert_eq!(default_mask(&kernel), Ok(set("0-1,32-39")));
    kernel.tree().put(DEFAULT, "0-3");
    assert!(default_mask(&kernel).is_err_and(|text| text.contains(DEFAULT)));
}

#[test]
fn a_vfio_interrupt_names_its_device() {
    let device = |actions: &str| {
        let identity = Identity {
            actions: actions.into(),
            ..Identity::default()
        };
        identity.vfio_device().map(str::to_owned)
    };
    for name in [
        "vfio-msix[12](0000:3b:00.0)",
        "vfio-msi[0](0000:3b:00.0)",
        "vfio-intx(0000:3b:00.0)",
    ] {
        assert_eq!(device(name).as_deref(), Some("0000:3b:00.0"), "{name}");
    }
    for name in ["vfio-intx(0000:3b:00.0),uhci_hcd:usb1", "nvme0q1", "vfio-msix", ""] {
        assert_eq!(device(name), None, "{name}");
    }
}
