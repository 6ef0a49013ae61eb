//! What stands for an owner on a map: a mark and a colour a pod, a sign a state. The map can be read without colours.

use stelia_api::State;
use stelia_kernel::locality::Device;

use super::{Cpu, CpuOwner, Map, Pod};

/// Number of colours that pods get in turn; their marks always differ.
pub(super) const COLOURS: usize = 10;

/// CPUs without a pod that is drawn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub mark: &'static str,
    /// In the legend.
    pub meaning: &'static str,
    /// Of the picture's style.
    pub class: &'static str,
    /// In JSON.
    pub name: &'static str,
}

impl Pool {
    const fn of(mark: &'static str, name: &'static str, class: &'static str, meaning: &'static str) -> Self {
        Self {
            mark,
            meaning,
            class,
            name,
        }
    }
}

pub(super) const SHARED: Pool = Pool::of(".", "shared", "shared", "shared");
pub(super) const RESERVED: Pool = Pool::of("r", "reserved", "reserved", "reserved");
pub(super) const KUBELET: Pool = Pool::of("k", "kubelet", "kubelet", "held by kubelet");
pub(super) const UNKNOWN: Pool = Pool::of("?", "unknown", "unknown", "unknown");
pub(super) const OTHER: Pool = Pool::of("x", "other", "unknown", "of pods that are not selected");
const POOLS: [&Pool; 5] = [&SHARED, &RESERVED, &KUBELET, &UNKNOWN, &OTHER];

/// A pod's mark: A to Z, AA to ZZ, AAA and so on.
pub(super) fn mark(mut pod: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b'A' + (pod % 26) as u8));
        if pod < 26 {
            break;
        }
        pod = pod / 26 - 1;
    }
    letters.iter().rev().collect()
}

/// What follows a pod's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sign {
    pub sign: &'static str,
    /// In the legend.
    pub meaning: &'static str,
    /// Of the picture's style.
    pub class: &'static str,
}

const fn sign(sign: &'static str, meaning: &'static str, class: &'static str) -> Sign {
    Sign { sign, meaning, class }
}

const DEGRADED: Sign = sign("!", "degraded", "degraded");
const NO_VM: Sign = sign("*", "pod without a VM", "pod");
/// Of a CPU, not of its pod; it comes before the pod's sign.
const INTERRUPTED: Sign = sign("#", "reached by device interrupts", "interrupted");
/// Of a pod's device.
const REMOTE: Sign = sign("^", "device on another NUMA node than the CPUs", "remote");

/// The class `waiting` is drawn dashed: the vCPUs are not on these CPUs.
fn of_state(state: State) -> Sign {
    let (text, class) = match state {
        State::Isolated => ("", "isolated"),
        State::Pinned => ("=", "isolated"),
        State::Waiting => ("~", "waiting"),
        State::Shared => ("+", "waiting"),
        State::Evicted => ("%", "waiting"),
        State::Releasing => ("-", "waiting"),
    };
    sign(text, state.name(), class)
}

impl Pod {
    /// That of a degraded VM says so, whatever its state.
    pub(super) fn sign(&self) -> Sign {
        match &self.instance {
            None => NO_VM,
            Some(instance) if !instance.degraded.is_empty() => DEGRADED,
            Some(instance) => of_state(instance.state),
        }
    }
}

impl Map {
    /// What stands for a CPU.
    pub(super) fn cpu_mark(&self, cpu: &Cpu) -> String {
        match cpu.whose {
            CpuOwner::Pod(n) => {
                let interrupted = if self.interrupted.contains(cpu.number) {
                    INTERRUPTED.sign
                } else {
                    ""
                };
                mark(n) + interrupted + self.pods.get(n).map_or("", |pod| pod.sign().sign)
            }
            CpuOwner::Pool(pool) => pool.mark.to_owned(),
        }
    }

    /// What follows the name of a pod's device: the pod's mark, whether it is remote, and how many there are.
    pub(super) fn device_mark(&self, pod: usize, device: &Device) -> String {
        let is_remote = self.pods.get(pod).is_some_and(|pod| pod.is_remote(device));
        let count = if device.count == 1 {
            String::new()
        } else {
            format!("×{}", device.count)
        };
        mark(pod) + if is_remote { REMOTE.sign } else { "" } + &count
    }

    /// The explanation of all that is on this map, and of nothing else: the mark, its meaning, and its class.
    pub(super) fn keys(&self) -> Vec<(String, &'static str, &'static str)> {
        let pools = POOLS
            .into_iter()
            .filter(|pool| self.cpus().any(|cpu| cpu.whose == CpuOwner::Pool(pool)));
        let pools = pools.map(|pool| (pool.mark.to_owned(), pool.meaning, pool.class));
        let drawn = self.pods.iter().filter(|pod| !pod.cpus.is_empty());
        let mut signs: Vec<Sign> = drawn.map(Pod::sign).collect();
        signs.sort();
        signs.dedup();
        let is_interrupted = |cpu: &Cpu| matches!(cpu.whose, CpuOwner::Pod(_)) && self.interrupted.contains(cpu.number);
        let has_remote = |pod: &Pod| pod.devices.iter().any(|device| pod.is_remote(device));
        signs.extend(self.cpus().any(is_interrupted).then_some(INTERRUPTED));
        signs.extend(self.pods.iter().any(has_remote).then_some(REMOTE));
        let signs = signs
            .iter()
            .map(|sign| (format!("A{}", sign.sign), sign.meaning, sign.class));
        pools.chain(signs).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_sign_is_explained() {
        let pools = POOLS.map(|pool| pool.mark.to_owned());
        let states = State::ALL.iter().map(|state| of_state(*state));
        let signs = states.chain([DEGRADED, NO_VM, INTERRUPTED, REMOTE]);
        let all: HashSet<String> = pools
            .into_iter()
            .chain(signs.map(|one| format!("A{}", one.sign)))
            .collect();
        let explained = crate::shared::output::manual::explained("THE MAP'S SIGNS", None);
        assert_eq!(explained.into_iter().collect::<HashSet<_>>(), all);
    }

    #[test]
    fn marks_grow_by_a_letter_and_are_never_the_same() {
        let some = [0, 25, 26, 51, 52, 701, 702, 18_277, 18_278].map(mark);
        assert_eq!(some, ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA", "ZZZ", "AAAA"]);
        let many: HashSet<String> = (0..20_000).map(mark).collect();
        assert_eq!(many.len(), 20_000);
    }

    #[test]
    fn every_state_of_the_daemon_has_a_sign_of_its_own() {
        let signs: HashSet<&str> = State::ALL.iter().map(|state| of_state(*state).sign).collect();
        assert_eq!(signs.len(), State::ALL.len());
    }
}
