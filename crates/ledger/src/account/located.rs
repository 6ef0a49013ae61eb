//! Where the parts of a VM were during a period.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stelia_cpus::located::Located;

use super::LocatedTime;
use crate::replay::ENDED_STATE;

/// Limit of the list of an account. The oldest of the parts with the most are left out.
const MAX_TIMES: usize = 100;

/// Adds a record of this time: the times of parts that it does not have unchanged end. A record that is repeated at the beginning of a segment changes
/// nothing, because its parts have their first times.
pub(super) fn record(times: &mut Vec<LocatedTime>, now: &[Located], at: u64) {
    for open in times.iter_mut().filter(|time| time.until_us == 0) {
        if !now.contains(&open.located) {
            open.until_us = at;
        }
    }
    for part in now {
        if !times.iter().any(|time| time.until_us == 0 && time.located == *part) {
            times.push(LocatedTime {
                located: part.clone(),
                until_us: 0,
            });
        }
    }
    // A ring of another's making may have any number.
    limit(times, 2 * MAX_TIMES);
}

/// Removes times that ended, each the oldest of the part that has the most of them, so that what often moves removes neither what stays where it is nor
/// what seldom moves; without any that ended, the first.
fn limit(times: &mut Vec<LocatedTime>, most: usize) {
    let excess = times.len().saturating_sub(most);
    if excess == 0 {
        return;
    }
    let mut ended: BTreeMap<(&str, &str), VecDeque<usize>> = BTreeMap::new();
    for (index, time) in times.iter().enumerate().filter(|(_, time)| time.until_us > 0) {
        let part = (time.located.part.name(), time.located.name.as_str());
        ended.entry(part).or_default().push_back(index);
    }
    let mut removed = BTreeSet::new();
    for _ in 0..excess {
        let of_most = ended
            .values_mut()
            .max_by_key(|one| (one.len(), Reverse(one.front().copied())));
        removed.extend(of_most.and_then(VecDeque::pop_front));
    }
    // Times that did not end.
    let mut others = excess - removed.len();
    let mut index = 0;
    times.retain(|time| {
        let is_ended = removed.contains(&index);
        let is_other = others > 0 && time.until_us == 0;
        index += 1;
        others -= usize::from(is_other);
        !is_ended && !is_other
    });
}

/// Ends all times of a VM that ended.
pub(super) fn end(times: &mut Vec<LocatedTime>, state: &str, at: u64) {
    if state == ENDED_STATE {
        record(times, &[], at);
    }
}

/// The times that are in this period. One that ends after it has not ended.
pub(super) fn finish(mut times: Vec<LocatedTime>, since_us: u64, until_us: u64) -> Vec<LocatedTime> {
    times.retain(|time| (time.until_us == 0 || time.until_us > since_us) && time.located.since_us <= until_us);
    limit(&mut times, MAX_TIMES);
    for time in times.iter_mut().filter(|time| time.until_us > until_us) {
        time.until_us = 0;
    }
    let order = |time: &LocatedTime| {
        (
            time.located.part as u8,
            time.located.name.clone(),
            time.located.since_us,
        )
    };
    times.sort_by_cached_key(order);
    times
}

#[cfg(test)]
mod tests {
    use stelia_cpus::located::Part;

    use super::*;

    fn part(part: Part, since_us: u64) -> Located {
        Located {
            part,
            since_us,
            ..Located::default()
        }
    }

    fn memory(near: u8, since_us: u64) -> Located {
        Located {
            nodes: vec![(0, near), (1, 100 - near)],
            near_percent: near,
            ..part(Part::Memory, since_us)
        }
    }

    /// How many times are kept, and since when the first and the last are.
    fn kept(times: &[LocatedTime]) -> (usize, u64, u64) {
        let (first, last) = times.first().zip(times.last()).unwrap();
        (times.len(), first.located.since_us, last.located.since_us)
    }

    #[test]
    fn what_often_moves_does_not_remove_what_stays() {
        let cpus = part(Part::Cpus, 1);
        let mut times = Vec::new();
        for hour in 1..=300u64 {
            let near = if hour % 2 == 0 { 100 } else { 90 };
            record(&mut times, &[cpus.clone(), memory(near, hour)], hour);
        }
        let times = finish(times, 0, 1000);
        assert_eq!(times.len(), MAX_TIMES);
        assert!(times.iter().any(|time| time.located == cpus && time.until_us == 0));
        assert!(times.iter().any(|time| time.located.since_us == 300));
    }

    #[test]
    fn what_often_moves_does_not_remove_what_seldom_moves() {
        let mut times = Vec::new();
        for hour in 1..=720u64 {
            // The CPUs moved 6 times, in the first days.
            let cpus = part(Part::Cpus, hour.min(60) / 10);
            record(&mut times, &[cpus, part(Part::Interrupts, hour)], hour);
        }
        let times = finish(times, 0, 1000);
        let since = |part: Part| -> Vec<u64> {
            let of = times.iter().filter(|time| time.located.part == part);
            of.map(|time| time.located.since_us).collect()
        };
        assert_eq!(since(Part::Cpus), (0..=6).collect::<Vec<u64>>());
        assert_eq!(since(Part::Interrupts), (628..=720).collect::<Vec<u64>>());
    }

    #[test]
    fn of_parts_that_never_ended_the_first_are_left_out() {
        let device = |number: u64| Located {
            name: format!("{number:04}"),
            ..part(Part::Device, number)
        };
        let all: Vec<Located> = (1..=300).map(device).collect();
        let mut times = Vec::new();
        record(&mut times, &all, 1);
        let times = finish(times, 0, 1000);
        assert_eq!(kept(&times), (100, 201, 300));
    }

    #[test]
    fn a_part_that_moved_ends_and_a_record_that_is_repeated_is_the_same() {
        let cpus = part(Part::Cpus, 1);
        let mut times = Vec::new();
        record(&mut times, &[cpus.clone(), memory(97, 1)], 1);
        record(&mut times, &[cpus.clone(), memory(97, 1)], 5);
        record(&mut times, &[cpus.clone(), memory(50, 7)], 7);
        let told = |times: Vec<LocatedTime>| -> Vec<(u8, u64, u64)> {
            let times = times.into_iter();
            times
                .map(|time| (time.located.near_percent, time.located.since_us, time.until_us))
                .collect()
        };
        assert_eq!(
            told(finish(times.clone(), 0, u64::MAX)),
            [(0, 1, 0), (97, 1, 7), (50, 7, 0)]
        );
        assert_eq!(
            told(finish(times.clone(), 0, 6)),
            [(0, 1, 0), (97, 1, 0)],
            "what came after the period"
        );
        assert_eq!(
            told(finish(times.clone(), 7, u64::MAX)),
            [(0, 1, 0), (50, 7, 0)],
            "it ended before"
        );
        end(&mut times, "waiting", 8);
        assert!(times.iter().any(|time| time.until_us == 0));
        end(&mut times, ENDED_STATE, 9);
        assert!(times.iter().all(|time| time.until_us > 0));
    }

    #[test]
    fn the_list_is_bounded_and_the_newest_stay() {
        let mut times = Vec::new();
        for at in 1..=300 {
            record(&mut times, &[memory(if at % 2 == 0 { 90 } else { 10 }, at)], at);
        }
        let times = finish(times, 0, u64::MAX);
        assert_eq!(kept(&times), (100, 201, 300));
    }
}
