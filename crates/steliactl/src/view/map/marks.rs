//! What stands for an owner on a map: a mark a pod, a sign a state, a colour of the picture. The map can be read without colours.

use stelia_api::State;
use stelia_model::Instance;

use super::Drawn;
use crate::shared::daemon::Owner;
use crate::shared::output::Meaning;

/// Number of colours that pods get in turn on the picture; their marks always differ.
const COLOURS: usize = 10;

/// How a pod in a state looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// What follows the pod's mark.
    pub sign: &'static str,
    pub meaning: &'static str,
    /// Of the picture's style.
    pub class: &'static str,
}

impl Look {
    /// Its line of the legend as a sign of a pod's: the mark, what it means, and the classes of its sample on the picture.
    pub(super) fn of_pods(self) -> [String; 3] {
        let mark = format!("A{}", self.sign);
        [mark, self.meaning.to_owned(), format!("{} {}", colour(0), self.class)]
    }
}

const fn look(sign: &'static str, meaning: &'static str, class: &'static str) -> Look {
    Look { sign, meaning, class }
}

pub(super) const SHARED: &str = "shared";

const DEGRADED: Look = look("!", "degraded", "degraded");
const NO_VM: Look = look("*", "pod without a VM", "pod");
/// Of a pod's device.
pub(super) const REMOTE: Look = look("^", "device on another NUMA node than the CPUs", "remote");

/// A CPU whose owner has no mark of its own.
pub(super) fn of_owner(owner: &Owner) -> Drawn {
    let drawn = match owner {
        Owner::Shared => [".", "shared", SHARED],
        Owner::Reserved => ["r", "reserved", "reserved"],
        Owner::Kubelet => ["k", "held by kubelet", "kubelet"],
        Owner::Unknown => ["?", "owner unknown", "unknown"],
        Owner::Instance { .. } | Owner::Pod { .. } => ["x", "of pods that are not selected", "unknown"],
    };
    let [mark, owner, class] = drawn.map(str::to_owned);
    Drawn {
        mark,
        owner,
        class,
        meaning: Meaning::Absent,
    }
}

/// The class `waiting` is drawn dashed: the vCPUs are not on these CPUs.
fn of_state(state: State) -> Look {
    let (sign, class) = match state {
        State::Isolated => ("", "isolated"),
        State::Pinned => ("=", "isolated"),
        State::Waiting => ("~", "waiting"),
        State::Shared => ("+", "waiting"),
        State::Evicted => ("%", "waiting"),
        State::Releasing => ("-", "waiting"),
    };
    look(sign, state.name(), class)
}

/// Of a pod with this VM. That of a degraded one says so, whatever its state.
pub(super) fn of_pod(instance: Option<&Instance>) -> Look {
    match instance {
        None => NO_VM,
        Some(instance) if !instance.degraded.is_empty() => DEGRADED,
        Some(instance) => of_state(instance.state),
    }
}

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

/// The class of a pod's colour.
pub(super) fn colour(pod: usize) -> String {
    format!("c{}", pod % COLOURS)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_sign_is_explained_and_every_state_has_its_own() {
        let other = Owner::Pod { pod: String::new() };
        let owners = [Owner::Shared, Owner::Reserved, Owner::Kubelet, Owner::Unknown, other];
        let pools = owners.map(|owner| of_owner(&owner).mark);
        let states: Vec<Look> = State::ALL.iter().map(|state| of_state(*state)).collect();
        let signs = states.iter().chain(&[DEGRADED, NO_VM, REMOTE]);
        let all: HashSet<String> = pools
            .into_iter()
            .chain(signs.map(|one| format!("A{}", one.sign)))
            .collect();
        assert_eq!(all.len(), 5 + State::ALL.len() + 3);
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
}
