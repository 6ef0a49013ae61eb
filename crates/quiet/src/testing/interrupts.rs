//! A model of the kernel's interrupts: masks, vectors, counts, CPUs that go on- and offline (`kernel/irq/proc.c`, `manage.c`,
//! `cpuhotplug.c`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rustix::io::Errno;
use stelia_cpus::CpuSet;

use super::Tree;
use crate::interrupts::read::DEFAULT;

#[derive(Debug, Clone, Default)]
pub struct Irq {
    pub hwirq: u32,
    pub chip: String,
    pub actions: String,
    pub mask: CpuSet,
    /// The CPU on which it fires now.
    pub effective: u32,
    /// The CPU to which it moves when it fires next.
    pub moves_to: Option<u32>,
    pub node: Option<u32>,
    /// The kernel places it: writes fail, with EPERM.
    pub managed: bool,
    /// By CPU; 32 bits, wrapping.
    pub counts: BTreeMap<u32, u32>,
}

/// All interrupts, and the CPUs.
#[derive(Default)]
pub struct Interrupts {
    pub all: BTreeMap<u32, Irq>,
    pub online: CpuSet,
    possible: CpuSet,
    nodes: Vec<CpuSet>,
    /// The number of interrupts for which a CPU has vectors; no limit for CPUs that are missing here.
    pub vectors: BTreeMap<u32, usize>,
    /// Files of managed interrupts have mode 0444, as from Linux 6.18 on.
    pub managed_read_only: bool,
    /// Interrupts move at once, as with interrupt remapping.
    pub move_at_once: bool,
}

impl Interrupts {
    pub(super) fn boot(tree: &mut Tree, nodes: &[CpuSet]) {
        let mut possible = CpuSet::new();
        for (number, cpus) in nodes.iter().enumerate() {
            possible.union_with(cpus);
            tree.put_mode(
                &format!("/sys/devices/system/node/node{number}/cpulist"),
                &cpus.to_string(),
                0o444,
            );
        }
        tree.put(DEFAULT, &possible.to_mask());
        tree.put_mode("/sys/devices/system/cpu/online", &possible.to_string(), 0o444);
        tree.interrupts.online = possible.clone();
        tree.interrupts.possible = possible;
        tree.interrupts.nodes = nodes.to_vec();
        tree.rule(DEFAULT, |tree, path, value| {
            let mask = CpuSet::from_mask(value).ok_or(Errno::INVAL)?;
            tree.interrupts.check(&mask, Errno::OVERFLOW)?;
            tree.put(path, &mask.to_mask());
            Ok(())
        });
        tree.rule("/proc/irq/", |tree, path, value| {
            let irq = path
                .split('/')
                .nth(3)
                .and_then(|number| number.parse().ok())
                .ok_or(Errno::NOENT)?;
            let mask: CpuSet = value.parse().map_err(|_| Errno::INVAL)?;
            tree.interrupts.set(irq, mask)?;
            update_files(tree, irq);
            Ok(())
        });
    }

    /// Refuses a mask with CPUs that cannot exist, or without an online CPU.
    fn check(&self, mask: &CpuSet, beyond: Errno) -> Result<(), Errno> {
        if !mask.is_subset(&self.possible) {
            return Err(beyond);
        }
        if mask.is_disjoint(&self.online) {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    }

    fn set(&mut self, irq: u32, mask: CpuSet) -> Result<(), Errno> {
        let one = self.all.get(&irq).ok_or(Errno::NOENT)?;
        if one.managed {
            return Err(Errno::PERM);
        }
        self.check(&mask, Errno::RANGE)?;
        let stays = mask.contains(one.effective) && self.online.contains(one.effective);
        let target = if stays {
            one.effective
        } else {
            self.vector(irq, &mask).ok_or(Errno::NOSPC)?
        };
        let at_once = self.move_at_once;
        if let Some(one) = self.all.get_mut(&irq) {
            one.mask = mask;
            one.moves_to = (target != one.effective).then_some(target);
            if at_once {
                one.effective = one.moves_to.take().unwrap_or(one.effective);
            }
        }
        Ok(())
    }

    /// The online CPU of the mask that has fewest interrupts, if one has a vector left.
    fn vector(&self, irq: u32, mask: &CpuSet) -> Option<u32> {
        let used = |cpu: u32| {
            let others = self.all.iter().filter(|(number, _)| **number != irq);
            others
                .filter(|(_, one)| one.moves_to.unwrap_or(one.effective) == cpu)
                .count()
        };
        let online = mask.intersection(&self.online);
        let loads = online.iter().map(|cpu| (used(cpu), cpu));
        let free = loads.filter(|(used, cpu)| self.vectors.get(cpu).is_none_or(|all| used < all));
        free.min().map(|(_, cpu)| cpu)
    }

    /// `/proc/interrupts`, in which the kernel hides arm64's inter-processor interrupts.
    pub(super) fn table(&self) -> String {
        let mut text = String::from("    ");
        for cpu in self.online.iter() {
            let _ = write!(text, "{:>11}", format!("CPU{cpu}"));
        }
        text.push('\n');
        for (irq, one) in self.all.iter().filter(|(_, one)| one.actions != "IPI") {
            let _ = write!(text, "{irq:>4}:");
            for cpu in self.online.iter() {
                let _ = write!(text, " {:>10}", one.counts.get(&cpu).copied().unwrap_or_default());
            }
            let _ = writeln!(
                text,
                " {} {:>4}-edge      {}",
                one.chip,
                one.hwirq,
                one.actions.replace(',', ", ")
            );
        }
        let local: String = self.online.iter().map(|_| format!(" {:>10}", 4711)).collect();
        let _ = writeln!(text, " LOC:{local}   Local timer interrupts\n ERR:          0");
        text
    }
}

impl Tree {
    /// A driver requests an interrupt of a device on this NUMA node. It gets the default mask.
    pub fn add_irq(&mut self, irq: u32, actions: &str, node: Option<u32>) {
        let default = self.get(DEFAULT).and_then(CpuSet::from_mask).unwrap_or_default();
        let interrupts = &self.interrupts;
        let all = default.intersection(&interrupts.online);
        let near = node
            .and_then(|node| interrupts.nodes.get(node as usize))
            .map(|cpus| cpus.intersection(&all));
        let mask = near.filter(|near| !near.is_empty()).unwrap_or(all);
        let effective = interrupts.vector(irq, &mask).unwrap_or_default();
        let (actions, chip) = (actions.into(), "PCI-MSIX-0000:00:01.0".into());
        let one = Irq {
            hwirq: irq % 8,
            chip,
            actions,
            mask,
            effective,
            node,
            ..Irq::default()
        };
        self.interrupts.all.insert(irq, one);
        update_files(self, irq);
    }

    /// As [`add_irq`](Self::add_irq), for a managed interrupt with this mask.
    pub fn add_managed(&mut self, irq: u32, actions: &str, mask: &CpuSet) {
        self.add_irq(irq, actions, None);
        self.change_irq(irq, |one| {
            one.mask = mask.clone();
            one.effective = mask.iter().next().unwrap_or_default();
            one.managed = true;
        });
    }

    /// Another program writes the mask.
    pub fn foreign(&mut self, irq: u32, mask: &CpuSet) -> Result<(), Errno> {
        let set = self.interrupts.set(irq, mask.clone());
        update_files(self, irq);
        set
    }

    /// Change an interrupt in any way.
    pub fn change_irq(&mut self, irq: u32, change: impl FnOnce(&mut Irq)) {
        if let Some(one) = self.interrupts.all.get_mut(&irq) {
            change(one);
        }
        update_files(self, irq);
    }

    /// The driver frees it.
    pub fn remove_irq(&mut self, irq: u32) {
        self.interrupts.all.remove(&irq);
        self.remove(&format!("/proc/irq/{irq}"));
        self.remove(&format!("/sys/kernel/irq/{irq}"));
    }

    /// The interrupt fires where it fired before, and then moves if a move is pending.
    pub fn fire(&mut self, irq: u32) {
        self.change_irq(irq, |one| {
            let count = one.counts.entry(one.effective).or_default();
            *count = count.wrapping_add(1);
            one.effective = one.moves_to.take().unwrap_or(one.effective);
        });
    }

    /// The kernel takes a CPU offline: an interrupt whose mask has no other may fire anywhere from then on.
    pub fn offline(&mut self, cpu: u32) {
        let online = self.interrupts.online.difference(&CpuSet::from_iter([cpu]));
        self.put_mode("/sys/devices/system/cpu/online", &online.to_string(), 0o444);
        self.interrupts.online = online.clone();
        let numbers: Vec<u32> = self.interrupts.all.keys().copied().collect();
        for irq in numbers {
            self.change_irq(irq, |one| {
                if one.managed {
                    return;
                }
                if one.mask.is_disjoint(&online) {
                    one.mask = online.clone();
                }
                if !online.contains(one.moves_to.unwrap_or(one.effective)) {
                    one.moves_to = None;
                    one.effective = one.mask.intersection(&online).iter().next().unwrap_or_default();
                }
            });
        }
    }

    /// The CPU returns; no mask becomes narrow again.
    pub fn online(&mut self, cpu: u32) {
        self.interrupts.online.insert(cpu);
        let text = self.interrupts.online.to_string();
        self.put_mode("/sys/devices/system/cpu/online", &text, 0o444);
    }
}

/// Update the files of an interrupt.
fn update_files(tree: &mut Tree, irq: u32) {
    let Some(one) = tree.interrupts.all.get(&irq).cloned() else {
        return;
    };
    let mode = if one.managed && tree.interrupts.managed_read_only {
        0o444
    } else {
        0o644
    };
    let proc = |name: &str| format!("/proc/irq/{irq}/{name}");
    let sys = |name: &str| format!("/sys/kernel/irq/{irq}/{name}");
    let node = one.node.map_or("-1".into(), |node| node.to_string());
    tree.put_mode(&proc("smp_affinity_list"), &one.mask.to_string(), mode);
    tree.put_mode(&proc("effective_affinity_list"), &one.effective.to_string(), 0o444);
    tree.put_mode(&proc("node"), &node, 0o444);
    tree.put_mode(&sys("hwirq"), &one.hwirq.to_string(), 0o444);
    tree.put_mode(&sys("actions"), &one.actions, 0o444);
    tree.put_mode(&sys("chip_name"), &one.chip, 0o444);
    tree.put_mode(&sys("type"), "edge", 0o444);
}
