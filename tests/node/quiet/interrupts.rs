//! Device interrupts as the kernel shows them: where each may fire, and where it fired.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use stelia_cpus::CpuSet;

use crate::support::*;

const DEFAULT: &str = "/proc/irq/default_smp_affinity";

/// A device interrupt by number, and who handles it. Numbers alone are given again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interrupt {
    pub irq: u32,
    pub name: String,
}

impl Interrupt {
    pub fn named(name: &str) -> Self {
        let found = all().into_iter().find(|one| one.name == name);
        found.unwrap_or_else(|| panic!("no interrupt {name}: {:#?}", all()))
    }

    fn path(&self) -> String {
        format!("/proc/irq/{}/smp_affinity_list", self.irq)
    }

    pub fn mask(&self) -> CpuSet {
        cpus(&read(self.path()))
    }

    pub fn set(&self, mask: &CpuSet) {
        put(self.path(), mask.to_string());
    }

    /// Where it fires now, or did last: a new mask counts from the next interrupt on.
    pub fn placed(&self) -> CpuSet {
        cpus(&read(format!("/proc/irq/{}/effective_affinity_list", self.irq)))
    }

    /// The system's error number for writing the mask that it has already.
    pub fn refusal(&self) -> Option<i32> {
        fs::write(self.path(), self.mask().to_string()).err()?.raw_os_error()
    }

    pub fn is_read_only(&self) -> bool {
        let file = fs::metadata(self.path()).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        file.mode() & 0o222 == 0
    }

    /// Whether the kernel places it, by what drivers ask for: queues of virtio disks and NVMe, but not NVMe's queue for
    /// administration. That the kernel thinks so too, `the_kernel_says_which_interrupts_it_manages` shows.
    pub fn is_managed(&self) -> bool {
        self.name.contains("-req.") || (self.name.starts_with("nvme") && !self.name.ends_with("q0"))
    }
}

/// Whether each CPU has it for itself: arm64's timer and others whose number at the interrupt controller is below 32.
fn is_private(chip: &str, number: &str) -> bool {
    let is_gic = ["GIC", "GICv2", "GICv3"].contains(&chip.split('-').next().unwrap_or_default());
    is_gic && number.parse::<u32>().is_ok_and(|number| number < 32)
}

/// All that a driver handles, the timer apart (on x86 number 0), which belongs to the kernel.
pub fn all() -> Vec<Interrupt> {
    let names = names_in("/proc/irq");
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let named = |irq: u32| Interrupt {
        irq,
        name: read(format!("/sys/kernel/irq/{irq}/actions")),
    };
    let of = |irq: u32, what: &str| read(format!("/sys/kernel/irq/{irq}/{what}"));
    let others = numbers
        .into_iter()
        .filter(|irq| *irq > 0 && !is_private(&of(*irq, "chip_name"), &of(*irq, "hwirq")));
    let all = others.map(named);
    all.filter(|one| !one.name.is_empty()).collect()
}

/// Where the interrupts that may be moved fire, and by default those to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masks {
    pub of: BTreeMap<Interrupt, CpuSet>,
    pub default: CpuSet,
}

impl Masks {
    pub fn now() -> Self {
        let default = read(DEFAULT);
        let steerable = all().into_iter().filter(|one| !one.is_managed());
        Self {
            of: steerable.map(|one| (one.clone(), one.mask())).collect(),
            default: CpuSet::from_mask(&default).unwrap_or_else(|| panic!("no mask: {default:?}")),
        }
    }

    pub fn restore(&self) {
        let now = Self::now();
        for (one, mask) in self.of.iter().filter(|(one, mask)| now.of.get(one) != Some(mask)) {
            one.set(mask);
        }
        if now.default != self.default {
            put(DEFAULT, self.default.to_mask());
        }
    }

    pub fn reaching(&self, cpus: &CpuSet) -> Vec<String> {
        let default = (!self.default.is_disjoint(cpus)).then(|| format!("by default: {}", self.default));
        let reaching = self.of.iter().filter(|(_, mask)| !mask.is_disjoint(cpus));
        let told = reaching.map(|(one, mask)| format!("{} {}: {mask}", one.irq, one.name));
        told.chain(default).collect()
    }

    /// These without CPUs of VMs, but those that had only such CPUs: where they go is for the test to say.
    pub fn without(&self, cpus: &CpuSet) -> Self {
        let mut masks = self.clone();
        masks.default = masks.default.difference(cpus);
        masks.of.values_mut().for_each(|mask| *mask = mask.difference(cpus));
        masks.of.retain(|_, mask| !mask.is_empty());
        masks
    }

    /// What is not as there, of what both have.
    pub fn differing(&self, from: &Self) -> Vec<String> {
        let own = self.of.iter();
        let both = own.filter_map(|(one, mask)| Some((one, mask, from.of.get(one)?)));
        let differing = both.filter(|(_, mask, other)| mask != other);
        let told =
            differing.map(|(one, mask, other)| format!("interrupt {} {}: {mask}, not {other}", one.irq, one.name));
        let default =
            (self.default != from.default).then(|| format!("default: {}, not {}", self.default, from.default));
        told.chain(default).collect()
    }
}

static FIRST: OnceLock<Masks> = OnceLock::new();

/// Before the first VM: what every test has to leave.
pub fn remember() {
    FIRST.get_or_init(Masks::now);
}

/// What is not as it was before the first VM, in words.
pub fn changed() -> Vec<String> {
    let first = FIRST.get();
    first.map(|first| Masks::now().differing(first)).unwrap_or_default()
}

/// How often each numbered interrupt fired on these CPUs since boot, but those that each CPU has of its own.
pub fn fired(on: &CpuSet) -> BTreeMap<Interrupt, u64> {
    let text = fs::read_to_string("/proc/interrupts").expect("/proc/interrupts");
    let mut lines = text.lines();
    // Only CPUs that are online have a column.
    let columns = lines.next().unwrap_or_default().split_whitespace();
    let columns: Vec<u32> = columns
        .filter_map(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect();
    let fired = |line: &str| {
        let (irq, rest) = line.split_once(':')?;
        let irq = irq.trim().parse().ok().filter(|irq| *irq > 0)?;
        let mut words = rest.split_whitespace();
        let mut count = 0;
        for cpu in &columns {
            let word = words.next().and_then(|word| word.parse::<u64>().ok());
            if on.contains(*cpu) {
                count += word.unwrap_or_else(|| panic!("{line}"));
            }
        }
        // "GICv3  26 Level     arch_timer"
        let words: Vec<&str> = words.collect();
        if let [chip, number, ..] = words[..]
            && is_private(chip, number)
        {
            return None;
        }
        let name = words.last().copied().unwrap_or_default().to_owned();
        Some((Interrupt { irq, name }, count))
    };
    lines.filter_map(fired).collect()
}

/// CPUs whose interrupts are counted from here on.
pub struct Watch {
    cpus: CpuSet,
    before: BTreeMap<Interrupt, u64>,
}

impl Watch {
    pub fn start(cpus: &CpuSet) -> Self {
        Self {
            cpus: cpus.clone(),
            before: fired(cpus),
        }
    }

    pub fn risen(&self) -> BTreeMap<Interrupt, u64> {
        let risen = |(one, count): (Interrupt, u64)| {
            let more = count - self.before.get(&one).copied().unwrap_or(0);
            (more > 0).then_some((one, more))
        };
        fired(&self.cpus).into_iter().filter_map(risen).collect()
    }
}
