//! Commands that say why, and whether what is promised holds: the group "Check" of the help.

pub mod doctor;
pub mod ledger;
pub(crate) mod noise;
pub(crate) mod report;
pub(crate) mod verify;
pub(crate) mod why;

/// The first of these, and how many more there are.
fn first_few<T: ToString>(all: &[T]) -> String {
    const MAX_NAMED: usize = 3;
    let mut named: Vec<String> = all.iter().take(MAX_NAMED).map(T::to_string).collect();
    if all.len() > MAX_NAMED {
        named.push(format!("and {} more", all.len() - MAX_NAMED));
    }
    named.join("; ")
}

/// Values with the same key, in the order in which they come.
pub(crate) fn group_by_key<K: PartialEq, V>(all: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in all {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}
