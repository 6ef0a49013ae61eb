//! Rows of nodes on a terminal: without the domain that all of them have, and of many rows those that differ in the name alone as one.

use std::collections::BTreeMap;

use stelia_table::TextStyle;

use crate::cluster::{common_domain, without_domain};

/// Limit of the rows that are listed one by one on a terminal.
const MAX_LISTED_ROWS: usize = 20;

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
        let mut places: BTreeMap<K, usize> = BTreeMap::new();
        let mut folded: Vec<(T, u64)> = Vec::new();
        for row in rows {
            let place = *places.entry(key(&row)).or_insert(folded.len());
            match folded.get_mut(place) {
                Some((first, more)) => {
                    *more += 1;
                    merge(first, &row);
                }
                None => folded.push((row, 0)),
            }
        }
        let is_folded = folded.iter().any(|(_, more)| *more > 0);
        let rows = folded.into_iter().map(|(mut row, more)| {
            if more > 0 {
                *name(&mut row) += &format!(" +{more}");
            }
            row
        });
        Self {
            rows: rows.collect(),
            is_folded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: u64, style: TextStyle) -> (Vec<String>, bool) {
        let all = (0..count).map(|number| (format!("w-{number:02}.dc1.example"), number % 2));
        let rows = NodeRows::of(all.collect(), style, |row| &mut row.0, |row| row.1, |_, _| ());
        (rows.rows.into_iter().map(|row| row.0).collect(), rows.is_folded)
    }

    #[test]
    fn many_equal_rows_are_one_on_a_terminal_alone() {
        let terminal = TextStyle {
            width: Some(80),
            ..TextStyle::from(true)
        };
        let names = ["w-00 +14", "w-01 +14"].map(str::to_owned).to_vec();
        assert_eq!(rows(30, terminal), (names, true));
        let wide = TextStyle { wide: true, ..terminal };
        let (names, is_folded) = rows(30, wide);
        assert_eq!((names.len(), names[29].as_str(), is_folded), (30, "w-29", false));
        let (names, is_folded) = rows(30, TextStyle::from(true));
        assert_eq!(
            (names.len(), names[29].as_str(), is_folded),
            (30, "w-29.dc1.example", false)
        );
        // A screen has room for each of a few.
        assert_eq!(rows(20, terminal).0.len(), 20);
    }
}
