//! The signs of the map and of its legend: what stands for each kind of owner, and in which colour on the picture. The map can be read
//! without colours.

use super::Mark;
use crate::shared::daemon::{Condition, Owner};
use crate::shared::output::Meaning;

/// Number of colours that pods get in turn on the picture; their marks always differ.
const COLOURS: usize = 10;

/// What stands for a kind of owner. Every pod has its own letters for the A of the text, and a colour for the c0 of the classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sign {
    pub text: &'static str,
    pub meaning: &'static str,
    /// Classes of the picture's style.
    pub class: &'static str,
}

const fn sign(text: &'static str, meaning: &'static str, class: &'static str) -> Sign {
    Sign { text, meaning, class }
}

pub(super) const SHARED: Sign = sign(".", "shared", "shared");
pub(super) const ISOLATED: Sign = sign("A", "isolated", "c0 isolated");

impl Sign {
    /// The mark of a CPU of the `n`th pod, or of one that belongs to no pod.
    pub(super) fn mark(self, n: usize, owner: String, meaning: Meaning) -> Mark {
        Mark {
            text: self.text.replacen('A', &letters(n), 1),
            owner,
            sign: self,
            class: self.class.replacen("c0", &format!("c{}", n % COLOURS), 1),
            meaning,
        }
    }
}

/// Of a CPU whose owner has no mark of its own.
pub(super) fn sign_of_owner(owner: &Owner) -> Sign {
    match owner {
        Owner::Shared => SHARED,
        Owner::Reserved => sign("r", "reserved", "reserved"),
        Owner::Kubelet => sign("k", "held by kubelet", "kubelet"),
        Owner::Unknown => sign("?", "owner unknown", "unknown"),
        Owner::Instance { .. } | Owner::Pod { .. } => sign("x", "not selected", "unknown"),
    }
}

/// Of a pod with a VM in this condition, or without one. The class `waiting` is drawn dashed: the vCPUs are not on these CPUs.
pub(super) fn sign_of_pod(vm: Option<Condition>) -> Sign {
    let Some(condition) = vm else {
        return sign("A*", "no VM or released", "c0 pod");
    };
    match condition {
        Condition::Isolated => ISOLATED,
        Condition::Degraded => sign("A!", condition.name(), "c0 degraded"),
        Condition::Pinned => sign("A=", condition.name(), "c0 isolated"),
        Condition::Waiting => sign("A~", condition.name(), "c0 waiting"),
        Condition::Shared => sign("A+", condition.name(), "c0 waiting"),
        Condition::Evicted => sign("A%", condition.name(), "c0 waiting"),
        Condition::Releasing => sign("A-", condition.name(), "c0 waiting"),
    }
}

/// A pod's letters: A to Z, AA to ZZ, AAA and so on.
fn letters(mut pod: usize) -> String {
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
        let conditions = Condition::ALL.map(Some).into_iter().chain([None]);
        let pods = conditions.map(sign_of_pod);
        let all: Vec<&str> = owners
            .iter()
            .map(sign_of_owner)
            .chain(pods)
            .map(|one| one.text)
            .collect();
        let signs: HashSet<String> = all.iter().map(|text| (*text).to_owned()).collect();
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
