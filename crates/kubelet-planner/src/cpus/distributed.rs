//! The distributed algorithm: the same share from each of several NUMA nodes, so that what stays free is balanced.

use super::accumulator::Accumulator;
use super::combinations::{Combinations, HeldCombination};
use super::packed::{Packing, packed};
use super::refusal::CpuRefusal;
use super::topology::{CpuGroups, Level};

/// Parameters of the distributed algorithm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distribution {
    /// CPUs are assigned in groups of this size.
    pub(super) group: usize,
    /// How CPUs are taken within a NUMA node.
    pub(super) packing: Packing,
    /// See [`Kubelet::combinations_copied`](super::Kubelet::combinations_copied).
    pub(super) copied: bool,
    /// The number of NUMA nodes to take CPUs from at least, if that many have some; 0: as few as possible.
    pub(super) least: usize,
}

/// Limit of the combinations of NUMA nodes of one size that are tried, each counted with its subsets where CPUs remain to be
/// given to some of its nodes. It is enough for all combinations of 16 nodes, and for those of four of 64.
const MAX_COMBINATIONS: u128 = 1 << 24;

/// The NUMA nodes to take from, as positions in the list of those that have free CPUs.
#[derive(Debug)]
struct Choice {
    nodes: HeldCombination,
    /// The NUMA nodes that give one group more.
    remainder: Option<HeldCombination>,
}

/// Takes `count` of the available CPUs; returns also whether they are not from the chosen NUMA nodes.
pub(super) fn distributed(
    topology: &CpuGroups,
    available: &[usize],
    count: usize,
    how: Distribution,
) -> Result<(Vec<usize>, bool), CpuRefusal> {
    let all_packed = || packed(topology, available, count, how.packing).map(|cpus| (cpus, false));
    if count == 0 || count > available.len() || !count.is_multiple_of(how.group) {
        return all_packed();
    }
    let accumulator = Accumulator::new(topology, available, count);
    let nodes = accumulator.order(Level::Node);
    let free = nodes.iter().map(|node| accumulator.free_in(Level::Node, *node));
    let search = Search {
        free: free.collect(),
        count,
        group: how.group,
        copied: how.copied,
    };
    let all_groups = topology.len().div_ceil(how.group);
    let wanted = count / how.group;
    let least = wanted.div_ceil(all_groups.div_ceil(topology.count(Level::Node)));
    let most = wanted.min(nodes.len());
    let least = if how.least <= most { least.max(how.least) } else { least };
    for size in least..=most {
        let subsets = if count == share(count, size, how.group) * size {
            0
        } else {
            size
        };
        let subsets = 1u128.checked_shl(u32::try_from(subsets).unwrap_or(u32::MAX));
        let looked_at = combinations(nodes.len(), size).saturating_mul(subsets.unwrap_or(u128::MAX));
        if looked_at > MAX_COMBINATIONS {
            return Err(CpuRefusal::NotSearched {
                nodes: nodes.len(),
                size,
            });
        }
        if let Some(choice) = search.best(size)? {
            return hand_out(topology, accumulator, &nodes, count, how, &choice);
        }
    }
    all_packed()
}

/// Takes the CPUs from the chosen NUMA nodes.
fn hand_out(
    topology: &CpuGroups,
    mut accumulator: Accumulator,
    nodes: &[usize],
    count: usize,
    how: Distribution,
    choice: &Choice,
) -> Result<(Vec<usize>, bool), CpuRefusal> {
    let take = |accumulator: &mut Accumulator, node: usize, count: usize| {
        let free = accumulator.free_of(Level::Node, node);
        // kubelet notices an error here only at the end.
        accumulator.take(&packed(topology, &free, count, how.packing).unwrap_or_default());
    };
    let chosen = &choice.nodes.positions;
    let share = share(count, chosen.len(), how.group);
    for position in chosen {
        take(&mut accumulator, nodes[*position], share);
    }
    let mut left = count - share * chosen.len();
    let extra = choice.remainder.as_ref();
    while left > 0 {
        let before = left;
        for position in extra.map_or(&[][..], |extra| &extra.positions) {
            if left > 0 && accumulator.free_in(Level::Node, nodes[*position]) >= how.group {
                take(&mut accumulator, nodes[*position], how.group);
                left -= how.group;
            }
        }
        if left == before {
            return Err(CpuRefusal::WouldNotReturn);
        }
    }
    match accumulator.needed {
        0 => {
            let overwritten = choice.nodes.overwritten || extra.is_some_and(|extra| extra.overwritten);
            Ok((accumulator.into_taken(), overwritten))
        }
        missing @ 1.. => Err(CpuRefusal::TooFewTaken(missing)),
        surplus => Err(CpuRefusal::TooManyTaken(surplus)),
    }
}

/// How many sets of `size` there are of `count`.
fn combinations(count: usize, size: usize) -> u128 {
    let size = size.min(count - size.min(count)) as u128;
    (0..size).fold(1u128, |sets, taken| {
        sets.saturating_mul(count as u128 - taken) / (taken + 1)
    })
}

/// The CPUs that each of this many NUMA nodes gives.
fn share(count: usize, nodes: usize, group: usize) -> usize {
    count / nodes / group * group
}

/// The search for the NUMA nodes that leave the node balanced best.
///
/// Whatever is chosen, the same number of CPUs stays free in total. So scores are ordered as the sums of the squares
/// are, and a combination that cannot lower the sum need not be scored.
#[derive(Debug)]
struct Search {
    /// Free CPUs of each NUMA node that has any, in their order.
    free: Vec<usize>,
    count: usize,
    group: usize,
    copied: bool,
}

/// The score of a combination.
#[derive(Debug)]
struct ScoredCombination {
    /// Lower is better.
    score: f64,
    /// The sum of squares behind the score.
    squares: usize,
    /// The members of the combination that give one group more.
    remainder: Option<HeldCombination>,
}

impl Search {
    /// The best combination of this size; of equal ones the first.
    fn best(&self, size: usize) -> Result<Option<Choice>, CpuRefusal> {
        let (mut lowest, mut squares) = (f64::MAX, usize::MAX);
        let mut best: Option<Choice> = None;
        Combinations::new(self.free.len(), size).each(|nodes| {
            if let Some(best) = &mut best {
                best.nodes.pass(nodes);
            }
            if lowest == 0.0 {
                return Ok(false);
            }
            if self.least_squares(nodes) >= squares {
                return Ok(true);
            }
            if let Some(judged) = self.judge(nodes)?
                && judged.score < lowest
            {
                (lowest, squares) = (judged.score, judged.squares);
                best = Some(Choice {
                    nodes: HeldCombination::new(nodes, self.copied),
                    remainder: judged.remainder,
                });
            }
            Ok(true)
        })?;
        Ok(best)
    }

    /// A lower bound of a combination's sum of squares; 0 where it must be scored because kubelet may hang on it.
    fn least_squares(&self, nodes: &[usize]) -> usize {
        let share = share(self.count, nodes.len(), self.group);
        let after = |node: &usize| self.free[*node].checked_sub(share);
        let Some(mut left) = nodes.iter().map(after).collect::<Option<Vec<_>>>() else {
            return usize::MAX;
        };
        if left.iter().any(|left| !left.is_multiple_of(self.group)) {
            return 0;
        }
        let square = |value: &usize| value * value;
        let own = nodes.iter().map(|node| square(&self.free[*node])).sum::<usize>();
        let others = squares(&self.free) - own;
        // Giving one more group where most CPUs are left lowers the sum most.
        for _ in 0..(self.count - share * nodes.len()) / self.group {
            if let Some(most) = left.iter_mut().max() {
                *most = most.saturating_sub(self.group);
            }
        }
        others + squares(&left)
    }

    /// The score of a combination; `None` if it cannot give the CPUs.
    fn judge(&self, nodes: &[usize]) -> Result<Option<ScoredCombination>, CpuRefusal> {
        let groups: usize = nodes.iter().map(|node| self.free[*node] / self.group).sum();
        let share = share(self.count, nodes.len(), self.group);
        if groups * self.group < self.count || nodes.iter().any(|node| self.free[*node] < share) {
            return Ok(None);
        }
        let mut after = self.free.clone();
        for node in nodes {
            after[*node] -= share;
        }
        let remainder = self.count - share * nodes.len();
        if remainder == 0 {
            return Ok(Some(ScoredCombination {
                score: deviation(&after),
                squares: squares(&after),
                remainder: None,
            }));
        }
        let candidates = nodes.iter().copied().filter(|node| after[*node] >= self.group);
        let candidates: Vec<usize> = candidates.collect();
        let mut best: Option<ScoredCombination> = None;
        let mut least = usize::MAX;
        let mut all = after.clone();
        for size in (1..=candidates.len()).rev() {
            Combinations::new(candidates.len(), size).each(|subset| {
                if let Some(remainder) = best.as_mut().and_then(|best| best.remainder.as_mut()) {
                    remainder.pass(subset);
                }
                let members = || subset.iter().map(|candidate| candidates[*candidate]);
                if members().map(|node| after[node]).sum::<usize>() < remainder {
                    return Ok(true);
                }
                all.copy_from_slice(&after);
                self.spread(&mut all, members, remainder)?;
                let squares = squares(&all);
                if squares >= least {
                    return Ok(true);
                }
                least = squares;
                let score = deviation(&all);
                if best.as_ref().is_none_or(|best| score < best.score) {
                    best = Some(ScoredCombination {
                        score,
                        squares,
                        remainder: Some(HeldCombination::new(subset, self.copied)),
                    });
                }
                Ok(true)
            })?;
            if let Some(remainder) = best.as_mut().and_then(|best| best.remainder.as_mut()) {
                remainder.settle();
            }
        }
        Ok(best.map(|best| ScoredCombination {
            remainder: best.remainder.map(|members| members.within(&candidates)),
            ..best
        }))
    }

    /// Takes the remainder, one group from each member in turn.
    fn spread<I: Iterator<Item = usize>>(
        &self,
        left: &mut [usize],
        members: impl Fn() -> I,
        mut remainder: usize,
    ) -> Result<(), CpuRefusal> {
        while remainder > 0 {
            let before = remainder;
            for node in members() {
                if remainder > 0 && left[node] >= self.group {
                    left[node] -= self.group;
                    remainder -= self.group;
                }
            }
            if remainder == before {
                return Err(CpuRefusal::WouldNotReturn);
            }
        }
        Ok(())
    }
}

fn squares(values: &[usize]) -> usize {
    values.iter().map(|value| value * value).sum()
}

/// The standard deviation, and the mean it is taken from, rounded to three decimals as kubelet does: answers depend on it.
fn deviation(values: &[usize]) -> f64 {
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = values.len() as f64;
    let mean = rounded(values.iter().map(|value| *value as f64).sum::<f64>() / count);
    let squares = values
        .iter()
        .map(|value| (*value as f64 - mean) * (*value as f64 - mean));
    rounded((squares.sum::<f64>() / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The NUMA nodes, and those of the remainder.
    type Positions = (Vec<usize>, Vec<usize>);

    /// What kubelet's own walk leaves: every combination and every subset judged, one by one.
    fn walked(search: &Search, size: usize) -> Result<Option<Positions>, CpuRefusal> {
        let (mut lowest, mut best) = (f64::MAX, None::<(HeldCombination, Vec<usize>)>);
        Combinations::new(search.free.len(), size).each(|nodes| {
            if let Some((best, _)) = &mut best {
                best.pass(nodes);
            }
            if lowest == 0.0 {
                return Ok(false);
            }
            let share = share(search.count, size, search.group);
            let groups: usize = nodes.iter().map(|node| search.free[*node] / search.group).sum();
            if groups * search.group < search.count || nodes.iter().any(|node| search.free[*node] < share) {
                return Ok(true);
            }
            let mut after = search.free.clone();
            nodes.iter().for_each(|node| after[*node] -= share);
            let remainder = search.count - share * size;
            let (mut local, mut local_best) = (f64::MAX, None::<HeldCombination>);
            if remainder == 0 {
                local = deviation(&after);
            }
            let able = nodes.iter().copied().filter(|node| after[*node] >= search.group);
            let able: Vec<usize> = able.collect();
            for size in (1..=able.len()).rev().filter(|_| remainder > 0) {
                Combinations::new(able.len(), size).each(|subset| {
                    if let Some(best) = &mut local_best {
                        best.pass(subset);
                    }
                    let members = || subset.iter().map(|member| able[*member]);
                    if members().map(|node| after[node]).sum::<usize>() < remainder {
                        return Ok(true);
                    }
                    let mut all = after.clone();
                    search.spread(&mut all, members, remainder)?;
                    if deviation(&all) < local {
                        local = deviation(&all);
                        local_best = Some(HeldCombination::new(subset, search.copied));
                    }
                    Ok(true)
                })?;
                local_best.iter_mut().for_each(HeldCombination::settle);
            }
            if local < lowest {
                lowest = local;
                let members = local_best.map(|best| best.within(&able).positions);
                best = Some((HeldCombination::new(nodes, search.copied), members.unwrap_or_default()));
            }
            Ok(true)
        })?;
        Ok(best.map(|(nodes, members)| (nodes.positions, members)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn the_short_search_finds_what_the_walk_finds(
            free in proptest::collection::vec(1usize..9, 1..=7),
            size in 1usize..=7,
            count in 1usize..=30,
            group in 1usize..=2,
            copied in any::<bool>(),
        ) {
            let (size, count) = (size.min(free.len()), count * group);
            let search = Search { free, count, group, copied };
            let found = search.best(size).map(|best| best.map(|best| {
                (best.nodes.positions, best.remainder.map_or_else(Vec::new, |members| members.positions))
            }));
            prop_assert_eq!(found, walked(&search, size));
        }
    }
}
