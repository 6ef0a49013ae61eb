use super::*;

fn set(text: &str) -> CpuSet {
    text.parse().expect("a list")
}

const MASK: &str = "/proc/irq/24/smp_affinity_list";

fn refused(kernel: &FakeKernel, path: &str, value: &str) -> Option<Errno> {
    kernel
        .write(path, value)
        .err()
        .and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn masks_are_checked_as_the_kernel_does() {
    // given
    let kernel = FakeKernel::new(4);
    kernel.tree().add_irq(24, "eth0", None);
    kernel.tree().offline(3);
    // then
    for (value, errno) in [
        ("", Errno::INVAL),
        ("3", Errno::INVAL),
        ("x", Errno::INVAL),
        ("4", Errno::RANGE),
    ] {
        assert_eq!(refused(&kernel, MASK, value), Some(errno), "{value}");
    }
    assert_eq!(
        refused(&kernel, "/proc/irq/25/smp_affinity_list", "0"),
        Some(Errno::NOENT)
    );
    assert_eq!(
        refused(&kernel, "/proc/irq/default_smp_affinity", "8"),
        Some(Errno::INVAL)
    );
    assert_eq!(
        refused(&kernel, "/proc/irq/default_smp_affinity", "10"),
        Some(Errno::OVERFLOW)
    );
    assert_eq!(kernel.read(MASK).expect("a mask"), "0-3\n");
    assert_eq!(refused(&kernel, MASK, "2-3"), None);
}

#[test]
fn an_interrupt_moves_when_it_fires_next() {
    // given
    let kernel = FakeKernel::new(2);
    kernel.tree().add_irq(24, "eth0", None);
    kernel.write(MASK, "1").expect("written");
    let effective = || kernel.read("/proc/irq/24/effective_affinity_list").expect("a list");
    // then
    assert_eq!(effective(), "0\n");
    kernel.tree().fire(24);
    assert_eq!(effective(), "1\n");
    kernel.tree().fire(24);
    assert_eq!(
        kernel.tree().interrupts.all[&24].counts,
        BTreeMap::from([(0, 1), (1, 1)])
    );
}

#[test]
fn the_table_has_columns_of_online_cpus_only() {
    let kernel = FakeKernel::new(3);
    kernel.tree().add_irq(24, "eth0", None);
    kernel.tree().fire(24);
    kernel.tree().offline(1);
    let table =
        stelia_kernel::counters::interrupts::Table::parse(kernel.read("/proc/interrupts").expect("text").as_bytes())
            .expect("a table");
    assert_eq!(
        (table.cpus, table.lines[&24].counts().to_vec()),
        (set("0,2"), vec![(0, 1)])
    );
    assert_eq!(table.lines[&24].name, "eth0");
}

#[test]
fn the_longest_rule_decides_and_failures_end() {
    // given
    let kernel = FakeKernel::default();
    kernel.tree().put("/sys/a/limit", "1");
    kernel.tree().put_mode("/sys/a/fixed", "1", 0o444);
    kernel.tree().rule("/sys/", |_, _, _| Err(Errno::PERM));
    kernel.tree().rule("/sys/a/limit", |tree, path, value| {
        tree.put(path, value);
        tree.put("/sys/a/seen", value);
        Ok(())
    });
    kernel.tree().fail(Call::Write, "/sys/a/limit", Errno::BUSY, Some(1));
    // then
    assert_eq!(refused(&kernel, "/sys/a/limit", "2"), Some(Errno::BUSY));
    assert_eq!(refused(&kernel, "/sys/a/limit", "2"), None);
    assert_eq!(refused(&kernel, "/sys/a/seen", "3"), Some(Errno::PERM));
    assert_eq!(refused(&kernel, "/sys/a/fixed", "3"), Some(Errno::ACCESS));
    assert_eq!(kernel.tree().get("/sys/a/seen"), Some("2"));
    assert_eq!(kernel.list("/sys/a").expect("names"), ["fixed", "limit", "seen"]);
    assert_eq!(kernel.tree().writes, [("/sys/a/limit".into(), "2".into())]);
}
