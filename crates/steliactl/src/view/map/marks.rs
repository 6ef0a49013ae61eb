//! What stands for an owner on a map: a mark a pod, a sign a state, a colour of the picture. The map can be read without colours.

use stelia_api::State;
use stelia_model::Instance;

use super::Drawn;
use crate::shared::daemon::Owner;
use crate::shared::output::Meaning;

/// Number of colours that pods get in turn on the picture; their marks always differ.
const COLOURS: usize = 10;

/// How an owner looks. Every pod has its own letters for the A of the mark, and a colour for the c0 of the classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Look {
    pub mark: &'static str,
    pub meaning: &'static str,
    /// Classes of the picture's style.
    pub class: &'static str,
}

const fn look(mark: &'static str, meaning: &'static str, class: &'static str) -> Look {
    Look { mark, meaning, class }
}

pub(super) const SHARED: Look = look(".", "shared", "shared");
pub(super) const ISOLATED: Look = look("A", "isolated", "c0 isolated");
/// Of a pod's device.
pub(super) const REMOTE: Look = look("A^", "device on another NUMA node than the CPUs", "c0 remote");
pub(super) const DEVICE: Look = look("A", "device", "device c0");
const DEGRADED: Look = look("A!", "degraded", "c0 degraded");
const NO_VM: Look = look("A*", "pod without a VM", "c0 pod");

impl Look {
    /// A CPU of the `n`th pod, or of nobody with a mark of its own.
    pub(super) fn drawn(self, n: usize, owner: String, meaning: Meaning) -> Drawn {
        Drawn {
            mark: self.mark.replacen('A', &letters(n), 1),
            owner,
            look: self,
            class: self.class_of(n),
            meaning,
        }
    }

    /// The classes of the `n`th pod.
    pub(super) fn class_of(self, n: usize) -> String {
        self.class.replacen("c0", &format!("c{}", n % COLOURS), 1)
    }
}

/// Of a CPU whose owner has no mark of its own.
pub(super) fn of_owner(owner: &Owner) -> Look {
    match owner {
        Owner::Shared => SHARED,
        Owner::Reserved => look("r", "reserved", "reserved"),
        Owner::Kubelet => look("k", "held by kubelet", "kubelet"),
        Owner::Unknown => look("?", "owner unknown", "unknown"),
        Owner::Instance { .. } | Owner::Pod { .. } => look("x", "of pods that are not selected", "unknown"),
    }
}

/// The class `waiting` is drawn dashed: the vCPUs are not on these CPUs.
fn of_state(state: State) -> Look {
    match state {
        State::Isolated => ISOLATED,
        State::Pinned => look("A=", state.name(), "c0 isolated"),
        State::Waiting => look("A~", state.name(), "c0 waiting"),
        State::Shared => look("A+", state.name(), "c0 waiting"),
        State::Evicted => look("A%", state.name(), "c0 waiting"),
        State::Releasing => look("A-", state.name(), "c0 waiting"),
    }
}

/// Of a pod with this VM. That of a degraded one says so, whatever its state.
pub(super) fn of_pod(instance: Option<&Instance>) -> Look {
    match instance {
        None => NO_VM,
        Some(instance) if !instance.degraded.is_empty() => DEGRADED,
        Some(instance) => of_state(instance.state),
    }
}

/// A pod's letters: A to Z, AA to ZZ, AAA and so on.
pub(super) fn letters(mut pod: usize) -> String {
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_sign_is_explained_and_every_state_has_its_own() {
        let other = Owner::Pod { pod: String::new() };
        let owners = [Owner::Shared, Owner::Reserved, Owner::Kubelet, Owner::Unknown, other];
        let states = State::ALL.iter().map(|state| of_state(*state));
        let pods = states.chain([DEGRADED, NO_VM, REMOTE]);
        let all: Vec<&str> = owners.iter().map(of_owner).chain(pods).map(|one| one.mark).collect();
        let signs: HashSet<String> = all.iter().map(|mark| (*mark).to_owned()).collect();
        assert_eq!(signs.len(), all.len());
        let explained = crate::shared::output::manual::explained("THE MAP'S SIGNS", None);
        assert_eq!(explained.into_iter().collect::<HashSet<_>>(), signs);
    }

    #[test]
    fn letters_grow_by_one_and_are_never_the_same() {
        let some = [0, 25, 26, 51, 52, 701, 702, 18_277, 18_278].map(letters);
        assert_eq!(some, ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA", "ZZZ", "AAAA"]);
        let many: HashSet<String> = (0..20_000).map(letters).collect();
        assert_eq!(many.len(), 20_000);
    }
}
