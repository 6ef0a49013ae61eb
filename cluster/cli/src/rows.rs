//! Rows on a terminal: names without what all of them have in common, and of many rows those that are alike as one.

use std::collections::BTreeMap;

use stelia_table::TextStyle;

use crate::cluster::{common_domain, without_domain};
use crate::vms::{LAUNCHER, vm_of};

/// Limit of the rows that are listed one by one on a terminal.
pub(crate) const MAX_LISTED_ROWS: usize = 20;

/// What the legend says of rows that stand for several nodes.
pub(crate) const FOLDED: &str = "NAME +N: N more nodes have the same values; -o wide lists each.";

pub(crate) struct NodeRows<T> {
    pub(crate) rows: Vec<T>,
    /// Whether a row stands for several nodes.
    pub(crate) is_folded: bool,
}

impl<T> NodeRows<T> {
    /// The rows as the style asks for: whole without a terminal, and each by itself with `-o wide`. `key`: what the table shows of a row
    /// beside its name. `merge`: what a row takes over of one that it stands for.
    pub(crate) fn of<K: Ord>(
        mut rows: Vec<T>,
        style: TextStyle,
        name: fn(&mut T) -> &mut String,
        key: impl Fn(&T) -> K,
        merge: fn(&mut T, &T),
    ) -> Self {
        if style.width.is_none() {
            return Self { rows, is_folded: false };
        }
        let names: Vec<String> = rows.iter_mut().map(|row| name(row).clone()).collect();
        if common_domain(names.iter().map(String::as_str)).is_some() {
            for name in rows.iter_mut().map(name) {
                name.truncate(without_domain(name).len());
            }
        }
        if style.wide || rows.len() <= MAX_LISTED_ROWS {
            return Self { rows, is_folded: false };
        }
        let merged = |mut first: T, more: Vec<T>| {
            more.iter().for_each(|row| merge(&mut first, row));
            *name(&mut first) += &format!(" +{}", more.len());
            first
        };
        let all = rows.len();
        let rows = fold(rows, |row| Some(key(row)), |_| 0, merged);
        Self {
            is_folded: rows.len() < all,
            rows,
        }
    }
}

/// Rows with the same key as one, where the first of them is; a row without a key stays by itself. The first `named` of a group stay, and
/// `merge` makes a row of the others if they are several.
pub(crate) fn fold<T, K: Ord>(
    rows: Vec<T>,
    key: impl Fn(&T) -> Option<K>,
    named: impl Fn(&T) -> usize,
    merge: impl Fn(T, Vec<T>) -> T,
) -> Vec<T> {
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<T>> = Vec::new();
    for row in rows {
        let next = groups.len();
        let place = key(&row).map_or(next, |key| *places.entry(key).or_insert(next));
        match groups.get_mut(place) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let rows = groups.into_iter().flat_map(|mut group| {
        let named = group.first().map_or(0, &named).min(group.len());
        let mut rest = group.split_off(named).into_iter();
        if let Some(first) = rest.next() {
            let more: Vec<T> = rest.collect();
            group.push(if more.is_empty() { first } else { merge(first, more) });
        }
        group
    });
    rows.collect()
}

/// Leaves out the domain that all nodes have, and [`LAUNCHER`] in front of pods' names. Answers what was left out, as a sentence.
pub(crate) fn short_names(mut names: Vec<(Option<&mut String>, &mut String)>) -> Option<String> {
    let domain =
        common_domain(names.iter().filter_map(|(node, _)| node.as_deref().map(String::as_str))).map(str::to_owned);
    let mut is_launcher = false;
    for (node, pod) in &mut names {
        if let Some(node) = node.as_mut().filter(|_| domain.is_some()) {
            node.truncate(without_domain(node).len());
        }
        let (start, name) = pod.split_at(pod.find('/').map_or(0, |slash| slash + 1));
        let short = format!("{start}{}", vm_of(name));
        is_launcher |= short != **pod;
        **pod = short;
    }
    let launcher = is_launcher.then(|| LAUNCHER.to_owned());
    let left_out: Vec<String> = launcher.into_iter().chain(domain).collect();
    (!left_out.is_empty()).then(|| {
        format!(
            "Names are shown without {}; --full shows them whole.",
            left_out.join(" and ")
        )
    })
}
