//! What stands for an owner on a map: a mark and a colour a pod, a sign a state. The map can be read without colours.

use std::collections::BTreeSet;

use stelia_api::State;
use stelia_kernel::locality::Device;
use unicode_width::UnicodeWidthStr;

use super::{Cpu, CpuOwner, Map, Pod};
pub(super) use crate::shared::output::cut;

/// Number of colours that pods get in turn; their marks always differ.
pub(super) const COLOURS: usize = 10;

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

/// A pod's state on the map.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sign {
    /// Follows the mark.
    pub sign: &'static str,
    /// As the legend has it, and as a class of the picture's style.
    pub meaning: &'static str,
    pub class: &'static str,
}

const ISOLATED: Sign = Sign::of("", "isolated", "isolated");
const CONTAINED: Sign = Sign::of("=", "pinned", "pinned");
const FLOATING: Sign = Sign::of("~", "floating", "floating");
const REGISTERED: Sign = Sign::of("+", "registered", "registered");
const LEAVING: Sign = Sign::of("-", "leaving", "leaving");
const DEGRADED: Sign = Sign::of("!", "degraded", "degraded");
const NO_INSTANCE: Sign = Sign::of("*", "of a pod without instance", "pod");

/// A sign of the CPU, not of its pod; it comes before the pod's sign.
const INTERRUPTED: Sign = Sign::of("#", "reached by device interrupts", "interrupted");

/// A sign of a pod's device.
const REMOTE: Sign = Sign::of("^", "device on another NUMA node than the CPUs", "remote");

/// CPUs without a pod: the mark, its meaning, its class and its name in JSON.
const POOLS: [(CpuOwner, [&str; 4]); 5] = [
    (CpuOwner::Shared, [".", "shared", "shared", "shared"]),
    (CpuOwner::Reserved, ["r", "reserved", "reserved", "reserved"]),
    (CpuOwner::Kubelet, ["k", "held by kubelet", "kubelet", "kubelet"]),
    (CpuOwner::Unknown, ["?", "unknown", "unknown", "unknown"]),
    (
        CpuOwner::Other,
        ["x", "of pods that are not selected", "unknown", "other"],
    ),
];

/// The mark, the meaning, the class and the name in JSON of a CPU without a pod; empty of a pod's.
pub(super) fn pool(whose: CpuOwner) -> [&'static str; 4] {
    let found = POOLS.iter().find(|(owner, _)| *owner == whose);
    found.map_or([""; 4], |(_, pool)| *pool)
}

impl Sign {
    const fn of(sign: &'static str, meaning: &'static str, class: &'static str) -> Self {
        Self { sign, meaning, class }
    }
}

/// A degraded pod's sign says so, whatever its state.
pub(super) fn sign(pod: &Pod) -> &'static Sign {
    match &pod.instance {
        None => &NO_INSTANCE,
        Some(instance) if !instance.degraded.is_empty() => &DEGRADED,
        Some(instance) => match instance.state {
            State::Isolated => &ISOLATED,
            State::Pinned => &CONTAINED,
            State::Waiting => &FLOATING,
            State::Shared | State::Evicted => &REGISTERED,
            State::Releasing => &LEAVING,
        },
    }
}

/// What follows a CPU's number.
pub(super) fn tail(map: &Map, cpu: &Cpu) -> String {
    match cpu.whose {
        CpuOwner::Pod(pod) => {
            let sign = map.pods.get(pod).map_or("", |pod| sign(pod).sign);
            let interrupted = map.interrupted.contains(cpu.number);
            mark(pod) + if interrupted { INTERRUPTED.sign } else { "" } + sign
        }
        whose => pool(whose)[0].to_owned(),
    }
}

/// What follows the name of a pod's device: the pod's mark, and whether it is remote.
pub(super) fn device_mark(map: &Map, pod: usize, device: &Device) -> String {
    let remote = map.pods.get(pod).is_some_and(|pod| pod.is_remote(device));
    mark(pod) + if remote { REMOTE.sign } else { "" }
}

/// One explanation below the map.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub mark: String,
    pub meaning: &'static str,
    pub class: &'static str,
}

/// The explanation of all that is on this map, and of nothing else.
pub(super) fn keys(map: &Map) -> Vec<Key> {
    let found: BTreeSet<CpuOwner> = map.cpus().map(|cpu| cpu.whose).collect();
    let pools = POOLS.into_iter().filter(|(whose, _)| found.contains(whose));
    let pools = pools.map(|(_, [mark, meaning, class, _])| (mark.to_owned(), meaning, class));
    let signs = found.iter().filter_map(|whose| match whose {
        CpuOwner::Pod(pod) => map.pods.get(*pod).map(sign),
        _ => None,
    });
    let signs: BTreeSet<&Sign> = signs.collect();
    let of_pods = |cpu: &&Cpu| matches!(cpu.whose, CpuOwner::Pod(_));
    let mut of_pods = map.cpus().filter(of_pods);
    let interrupted = of_pods.any(|cpu| map.interrupted.contains(cpu.number));
    let mut devices = map
        .pods
        .iter()
        .flat_map(|pod| pod.devices.iter().map(move |device| (pod, device)));
    let remote = devices.any(|(pod, device)| pod.is_remote(device));
    let signs = signs
        .into_iter()
        .chain(interrupted.then_some(&INTERRUPTED))
        .chain(remote.then_some(&REMOTE))
        .map(|sign| {
            let mark = format!("A{}", sign.sign);
            (mark, sign.meaning, sign.class)
        });
    let keys = pools.chain(signs);
    keys.map(|(mark, meaning, class)| Key { mark, meaning, class })
        .collect()
}

/// How many columns a text takes in a font of equal widths.
pub(super) fn columns(text: &str) -> usize {
    text.width()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const STATES: [&Sign; 5] = [&ISOLATED, &CONTAINED, &FLOATING, &REGISTERED, &LEAVING];

    #[test]
    fn every_sign_is_explained() {
        let pools = POOLS.map(|(_, [mark, ..])| mark.to_owned());
        let signs = STATES
            .into_iter()
            .chain([&DEGRADED, &NO_INSTANCE, &INTERRUPTED, &REMOTE]);
        let signs = signs.map(|sign| format!("A{}", sign.sign));
        let all: Vec<String> = pools.into_iter().chain(signs).collect();
        assert_eq!(crate::shared::output::manual::explained("THE MAP'S SIGNS", None), all);
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
        let signs: HashSet<&str> = STATES.iter().map(|sign| sign.sign).collect();
        assert_eq!(signs.len(), STATES.len());
        for state in State::ALL {
            assert!(STATES.iter().any(|sign| sign.class == state.name()), "{}", state.name());
        }
    }

    #[test]
    fn a_long_text_ends_in_an_ellipsis() {
        assert_eq!(
            [cut("abcdef", 6), cut("abcdef", 5), cut("日本語", 5), cut("ab", 1)],
            ["abcdef", "abcd…", "日本…", "…"]
        );
    }
}
