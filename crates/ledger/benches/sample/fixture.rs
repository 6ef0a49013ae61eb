//! A host with 512 CPUs, each a seat of one vCPU thread, as files below a folder. They have the sizes that the kernel's have.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;
use stelia_ledger::sample::{Seat, TaskId};

pub const CPUS: u32 = 512;
/// Queues of NVMe disks and network cards.
const INTERRUPTS: u32 = 160;
/// Bound kernel threads of each CPU: cpuhp, migration, ksoftirqd, and workers.
const BOUND: u32 = 6;
/// Threads of the kernel's that are not bound.
const OTHERS: u32 = 500;
/// `PF_KTHREAD`, `PF_NO_SETAFFINITY`.
const FLAGS: u32 = 0x0420_0000;

const OWN: [&str; 24] = [
    "NMI", "LOC", "SPU", "PMI", "IWI", "RTR", "RES", "CAL", "TLB", "TRM", "THR", "DFR", "MCE", "MCP", "HYP", "HRE",
    "HVS", "PIN", "NPI", "PIW", "PMN", "XA", "XB", "XC",
];
const SOFTIRQS: [&str; 10] = [
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
];

/// About a megabyte.
pub fn interrupts() -> String {
    let mut text = " ".repeat(12);
    (0..CPUS).for_each(|cpu| _ = write!(text, "CPU{cpu:<8}"));
    text.push('\n');
    let mut row = |label: &str, count: &dyn Fn(u32) -> u32, rest: &str| {
        _ = write!(text, "{label:>4}: ");
        (0..CPUS).for_each(|cpu| _ = write!(text, "{:>10} ", count(cpu)));
        text.push_str(rest);
        text.push('\n');
    };
    for irq in 0..INTERRUPTS {
        let queue = |cpu| if cpu % INTERRUPTS == irq { 1_000_000 + cpu } else { 0 };
        row(
            &(irq + 30).to_string(),
            &queue,
            &format!("PCI-MSIX-0000:3b:00.0 {irq:>4}-edge      nvme{}q{irq}", irq % 4),
        );
    }
    for (place, name) in (1..).zip(OWN) {
        row(name, &|cpu| place * 123_457 + cpu, "Some interrupts of the CPU's own");
    }
    text.push_str(" ERR:          0\n MIS:          0\n");
    text
}

fn softirqs() -> String {
    let mut text = " ".repeat(20);
    (0..CPUS).for_each(|cpu| _ = write!(text, "CPU{cpu:<8}"));
    text.push('\n');
    for name in SOFTIRQS {
        _ = write!(text, "{name:>12}:");
        (0..CPUS).for_each(|cpu| _ = write!(text, " {:>10}", 1_000 + cpu));
        text.push('\n');
    }
    text
}

fn schedstat() -> String {
    let mut text = "version 17\ntimestamp 4297299139\n".to_owned();
    let mask = vec!["ffffffff"; 16].join(",");
    for cpu in 0..CPUS {
        _ = writeln!(
            text,
            "cpu{cpu} 0 0 1234567 234567 345678 45678 {} 9876543210 {}",
            123_456_789_012_u64,
            1_006 + BOUND
        );
        for (level, name) in ["SMT", "MC", "PKG", "NUMA"].iter().enumerate() {
            _ = writeln!(text, "domain{level} {name} {mask} {}", "123456 ".repeat(45));
        }
    }
    text
}

fn stat() -> String {
    let mut text = "cpu  478600 0 214610 19830100 2890 0 2690 1240 0 0\n".to_owned();
    (0..CPUS).for_each(|cpu| _ = writeln!(text, "cpu{cpu} 4786 0 2146 198301 289 0 26 12 0 0"));
    _ = writeln!(text, "intr 123456{}\nctxt 1\nbtime 2", " 0".repeat(4000));
    text
}

/// Write them; returns the seats.
pub fn write(root: &Path) -> anyhow::Result<BTreeSet<Seat>> {
    let proc = root.join("proc");
    let cgroup = root.join("sys/fs/cgroup");
    fs::create_dir_all(&proc).context("a folder")?;
    fs::create_dir_all(&cgroup)?;
    fs::write(proc.join("interrupts"), interrupts())?;
    fs::write(proc.join("softirqs"), softirqs())?;
    fs::write(proc.join("schedstat"), schedstat())?;
    fs::write(proc.join("stat"), stat())?;
    let thread = |id: u32, name: &str, flags: u32, cpu: u32, switches: u32| -> anyhow::Result<()> {
        let folder = proc.join(format!("{id}"));
        let task = folder.join(format!("task/{id}"));
        fs::create_dir_all(&task)?;
        let rest = "18446744073709551615 0 0 0 0 0 0 0 2147483647 0 1 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0";
        fs::write(
            task.join("stat"),
            format!("{id} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {id} 0 0 {rest}\n"),
        )?;
        fs::write(
            folder.join("status"),
            format!("Name:\t{name}\nCpus_allowed_list:\t{cpu}\n"),
        )?;
        Ok(fs::write(
            folder.join("schedstat"),
            format!("123456789 123456 {switches}\n"),
        )?)
    };
    let mut list = String::new();
    let mut next = 3;
    for cpu in 0..CPUS {
        for number in 0..BOUND {
            let name = match number {
                0 => format!("cpuhp/{cpu}"),
                1 => format!("migration/{cpu}"),
                2 => format!("ksoftirqd/{cpu}"),
                worker => format!("kworker/{cpu}:{worker}-events"),
            };
            thread(next, &name, FLAGS, cpu, 1)?;
            _ = writeln!(list, "{next}");
            next += 1;
        }
    }
    for _ in 0..OTHERS {
        thread(next, "kworker/u1024:3-flush", FLAGS, 0, 1)?;
        _ = writeln!(list, "{next}");
        next += 1;
    }
    fs::write(cgroup.join("cgroup.procs"), list)?;
    let mut seats = BTreeSet::new();
    for cpu in 0..CPUS {
        thread(next, &format!("CPU {cpu}/KVM"), 0x0040_0040, cpu, 1000)?;
        seats.insert(Seat {
            cpus: [cpu].into_iter().collect(),
            threads: vec![TaskId {
                id: next.try_into()?,
                start: next.into(),
            }],
            cgroup: None,
        });
        next += 1;
    }
    Ok(seats)
}

/// Let something other than the seats' threads have run on each CPU once more.
pub fn disturb(root: &Path, round: u32) -> anyhow::Result<()> {
    let text = schedstat().replace(
        &format!(" {}\n", 1_006 + BOUND),
        &format!(" {}\n", 1_007 + BOUND + round),
    );
    Ok(fs::write(root.join("proc/schedstat"), text)?)
}
