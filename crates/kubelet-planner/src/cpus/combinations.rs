//! Combinations in lexicographic order, and when kubelet overwrites one that it keeps.

/// All `size` of `count` positions, in lexicographic order.
pub(super) struct Combinations {
    count: usize,
    current: Vec<usize>,
    done: bool,
}

impl Combinations {
    pub(super) fn new(count: usize, size: usize) -> Self {
        Self {
            count,
            current: (0..size).collect(),
            done: size == 0 || size > count,
        }
    }

    /// Calls `visit` with each; it returns whether to go on.
    pub(super) fn each<E>(mut self, mut visit: impl FnMut(&[usize]) -> Result<bool, E>) -> Result<(), E> {
        while !self.done && visit(&self.current)? {
            self.advance();
        }
        Ok(())
    }

    fn advance(&mut self) {
        let size = self.current.len();
        let movable = |index: &usize| self.current[*index] < self.count - size + index;
        let Some(index) = (0..size).rev().find(movable) else {
            self.done = true;
            return;
        };
        let first = self.current[index] + 1;
        for (offset, position) in self.current[index..].iter_mut().enumerate() {
            *position = first + offset;
        }
    }
}

/// The best combination so far, which kubelet holds while it tries others.
///
/// kubelet's combination is a Go slice, grown element by element: its memory is allocated anew when an element is appended
/// at length 0, 1, 2, 4, 8 and so on, and in between the element is written in place. So two combinations whose beginnings
/// are the same up to the last allocation share their memory, and the one kept changes when the later one is made.
#[derive(Debug)]
pub(super) struct HeldCombination {
    pub(super) positions: Vec<usize>,
    /// Combinations with a common beginning of this length share memory.
    shared: usize,
    /// Whether the kept combination was overwritten.
    pub(super) overwritten: bool,
}

impl HeldCombination {
    /// Keeps a combination of this walk; with `copied`, in memory of its own.
    pub(super) fn new(combination: &[usize], copied: bool) -> Self {
        let shared = match combination.len() {
            0 | 1 => 1,
            size => (1 << (size - 1).ilog2()) + 1,
        };
        Self {
            positions: combination.to_vec(),
            shared: if copied { usize::MAX } else { shared },
            overwritten: false,
        }
    }

    /// The same walk has come to this combination, which may overwrite the kept one.
    pub(super) fn pass(&mut self, combination: &[usize]) {
        let shared = self.shared;
        let common = self
            .positions
            .get(..shared)
            .is_some_and(|own| combination.get(..shared) == Some(own));
        if common && self.positions != combination {
            self.positions.copy_from_slice(combination);
            self.overwritten = true;
        }
    }

    /// The kept combination with each position replaced by the element of `list` there.
    pub(super) fn within(&self, list: &[usize]) -> Self {
        Self {
            positions: self.positions.iter().map(|position| list[*position]).collect(),
            shared: usize::MAX,
            overwritten: self.overwritten,
        }
    }

    /// The walk is over: later ones use memory of their own, so the kept combination cannot change any more.
    pub(super) fn settle(&mut self) {
        self.shared = usize::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(count: usize, size: usize) -> Vec<Vec<usize>> {
        let mut all = Vec::new();
        let each = Combinations::new(count, size).each(|combination| {
            all.push(combination.to_vec());
            Ok::<_, ()>(true)
        });
        each.unwrap();
        all
    }

    /// Go's slices: the memory, and how much of it is used.
    fn append(arrays: &mut Vec<Vec<usize>>, (array, length): (usize, usize), element: usize) -> (usize, usize) {
        if length < arrays[array].len() {
            arrays[array][length] = element;
            return (array, length + 1);
        }
        let mut grown = arrays[array].clone();
        grown.resize((2 * length).max(1), 0);
        grown[length] = element;
        arrays.push(grown);
        (arrays.len() - 1, length + 1)
    }

    /// The walk with memory as in Go, all combinations kept to the end.
    fn walk(
        arrays: &mut Vec<Vec<usize>>,
        kept: &mut Vec<(usize, usize)>,
        slice: (usize, usize),
        of: (usize, usize),
        start: usize,
    ) {
        let (count, size) = of;
        if size == 0 {
            kept.push(slice);
            return;
        }
        for element in start..=count - size {
            let longer = append(arrays, slice, element);
            walk(arrays, kept, longer, (count, size - 1), element + 1);
        }
    }

    #[test]
    fn combinations_come_in_lexicographic_order() {
        assert_eq!(all(4, 2), [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(all(3, 3), [[0, 1, 2]]);
        assert_eq!(all(2, 3).len() + all(3, 0).len(), 0);
    }

    proptest! {
        #[test]
        fn what_is_kept_changes_as_the_memory_of_a_go_slice_does((count, size) in (1usize..=10).prop_flat_map(|count| (Just(count), 1..=count))) {
            let (mut arrays, mut slices) = (vec![Vec::new()], Vec::new());
            walk(&mut arrays, &mut slices, (0, 0), (count, size), 0);
            let combinations = all(count, size);
            for (index, (array, length)) in slices.into_iter().enumerate() {
                let mut kept = HeldCombination::new(&combinations[index], false);
                combinations[index..].iter().for_each(|later| kept.pass(later));
                prop_assert_eq!(&kept.positions, &arrays[array][..length]);
                prop_assert_eq!(kept.overwritten, kept.positions != combinations[index]);
            }
        }
    }
}
