//! Computes `schemata`: which ways of the L3 caches, and how much memory bandwidth, a group may use. Pure.
//!
//! Classes get ways in the order of their names, from the lowest way on, and share none while there are enough. A class that
//! would reach beyond the last way ends there, and so shares ways with those before it. The default group keeps all ways: a
//! class limits what its VMs use and reserves nothing.

use std::collections::BTreeMap;

use crate::order::CacheClass;

/// Properties of L3 allocation (`info/L3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheWays {
    /// `cbm_mask`: every bit that a mask may have.
    pub(super) all: u64,
    /// `min_cbm_bits`.
    pub(super) least: u32,
}

/// Properties of memory bandwidth allocation (`info/MB`), in per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bandwidth {
    /// `min_bandwidth`.
    pub(super) least: u32,
    /// `bandwidth_gran`.
    pub(super) step: u32,
}

/// What the hardware can allocate; `None`: it does not allocate that resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Hardware {
    pub(super) ways: Option<CacheWays>,
    pub(super) bandwidth: Option<Bandwidth>,
}

/// Values by resource and by the number of its domain.
type Schemata = BTreeMap<String, BTreeMap<String, String>>;

/// Parses a group's `schemata`, in which the kernel pads values with blanks and zeros. Other texts are left out.
fn parse(text: &str) -> Schemata {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let domains = |values: &str| {
        let pairs = values.split(';').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(id, value)| (id.trim().into(), value.trim().into()))
            .collect()
    };
    lines
        .map(|(name, values)| (name.trim().into(), domains(values)))
        .collect()
}

fn is_l3(resource: &str) -> bool {
    // The latter two where code and data are separated (CDP).
    matches!(resource, "L3" | "L3CODE" | "L3DATA")
}

/// The lines to write to a class's `schemata` so that it is as the settings say: only the domains that differ. `None`: there
/// are none. Resources that the class does not limit get the value of the default group, whose `schemata` is `default`.
pub(super) fn change(
    name: &str,
    classes: &BTreeMap<String, CacheClass>,
    hardware: Hardware,
    now: &str,
    default: &str,
) -> Result<Option<String>, String> {
    let class = classes.get(name).ok_or("the settings have no such class")?;
    let mask = class.l3_ways.map(|_| mask(name, classes, hardware.ways)).transpose()?;
    let (now, default) = (parse(now), parse(default));
    let percent = class
        .memory_bandwidth
        .map(|percent| rounded_bandwidth(percent, hardware.bandwidth, now.get("MB")));
    let percent = percent.transpose()?;
    if mask.is_some() && !now.keys().any(|resource| is_l3(resource)) {
        return Err("this machine does not allocate L3 cache".into());
    }
    let mut lines = Vec::new();
    for (resource, domains) in &now {
        let ours = match resource.as_str() {
            "MB" => percent.map(|percent| percent.to_string()),
            l3 if is_l3(l3) => mask.map(|mask| format!("{mask:x}")),
            _ => continue,
        };
        let differing = domains.iter().filter_map(|(id, value)| {
            let default_value = || default.get(resource).and_then(|domains| domains.get(id)).cloned();
            let want = ours.clone().or_else(default_value)?;
            (number(resource, &want) != number(resource, value)).then(|| format!("{id}={want}"))
        });
        let differing: Vec<String> = differing.collect();
        if !differing.is_empty() {
            lines.push(format!("{resource}:{}", differing.join(";")));
        }
    }
    Ok((!lines.is_empty()).then(|| lines.join("\n")))
}

/// The number in a value: masks are hexadecimal.
fn number(resource: &str, value: &str) -> Option<u64> {
    let radix = if is_l3(resource) { 16 } else { 10 };
    u64::from_str_radix(value, radix).ok()
}

/// The mask of a class with `l3_ways`.
fn mask(name: &str, classes: &BTreeMap<String, CacheClass>, ways: Option<CacheWays>) -> Result<u64, String> {
    let ways = ways.ok_or("this machine does not allocate L3 cache")?;
    let total = ways.all.trailing_ones();
    if total == 0 || ways.all.count_ones() != total {
        return Err(format!(
            "the ways of L3 are {:x}, which is not one row from the lowest",
            ways.all
        ));
    }
    let mut next = 0;
    for (other, class) in classes {
        let Some(asked) = class.l3_ways else { continue };
        let fits = (1..=total).contains(&asked);
        if !fits && other == name {
            return Err(format!("l3-ways = {asked}: L3 has {total} ways here"));
        }
        if !fits {
            continue;
        }
        let count = asked.max(ways.least).min(total);
        let first = next.min(total - count);
        if other == name {
            return Ok((u64::MAX >> (64 - count)) << first);
        }
        next = first + count;
    }
    Err("the settings have no such class".into())
}

/// The percentage, rounded up to one that the hardware has.
fn rounded_bandwidth(
    asked: u32,
    hardware: Option<Bandwidth>,
    now: Option<&BTreeMap<String, String>>,
) -> Result<u32, String> {
    let (Some(hardware), Some(now)) = (hardware, now) else {
        return Err("this machine does not allocate memory bandwidth".into());
    };
    // AMD's unit is 1/8 GB/s, and with the mount option mba_MBps it is MB/s: a group begins with a value above 100.
    if let Some(value) = now
        .values()
        .find(|value| value.parse::<u64>().is_ok_and(|value| value > 100))
    {
        return Err(format!(
            "memory-bandwidth is a percentage, and resctrl has another unit here: a group has {value}"
        ));
    }
    if !(1..=100).contains(&asked) {
        return Err(format!("memory-bandwidth = {asked}: expected 1 to 100"));
    }
    let step = hardware.step.max(1);
    Ok(asked.max(hardware.least).div_ceil(step).saturating_mul(step).min(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "    L3:0=7ff;1=7ff\n    MB:0=100;1=100\n";

    fn hardware() -> Hardware {
        Hardware {
            ways: Some(CacheWays { all: 0x7ff, least: 2 }),
            bandwidth: Some(Bandwidth { least: 10, step: 10 }),
        }
    }

    fn class(ways: u32, percent: u32) -> CacheClass {
        CacheClass {
            l3_ways: (ways > 0).then_some(ways),
            memory_bandwidth: (percent > 0).then_some(percent),
        }
    }

    fn classes(list: &[(&str, u32, u32)]) -> BTreeMap<String, CacheClass> {
        let pairs = list
            .iter()
            .map(|(name, ways, percent)| ((*name).to_owned(), class(*ways, *percent)));
        pairs.collect()
    }

    fn changed(name: &str, list: &[(&str, u32, u32)], now: &str) -> Result<Option<String>, String> {
        change(name, &classes(list), hardware(), now, ALL)
    }

    #[test]
    fn classes_share_no_ways_while_there_are_enough() {
        let list = [("a", 4, 0), ("b", 0, 50), ("c", 5, 0), ("d", 2, 0)];
        let masks = ["a", "c", "d"].map(|name| mask(name, &classes(&list), hardware().ways).unwrap());
        assert_eq!(masks, [0x00f, 0x1f0, 0x600]);
    }

    #[test]
    fn a_class_that_would_reach_beyond_the_last_way_ends_there() {
        let list = [("a", 8, 0), ("b", 6, 0), ("c", 1, 0)];
        let masks = ["a", "b", "c"].map(|name| mask(name, &classes(&list), hardware().ways).unwrap());
        assert_eq!(masks, [0x0ff, 0x7e0, 0x600], "one way is raised to the least number");
    }

    #[test]
    fn every_mask_is_one_row_within_the_cache() {
        for total in 1..=32u32 {
            let ways = CacheWays {
                all: u64::MAX >> (64 - total),
                least: 1 + total % 3,
            };
            for first in 1..=total {
                let list = classes(&[("a", first, 0), ("b", total - first, 0), ("c", 3, 0)]);
                for name in ["a", "b", "c"] {
                    let Ok(mask) = mask(name, &list, Some(ways)) else {
                        continue;
                    };
                    let row = mask >> mask.trailing_zeros();
                    assert_eq!(row & (row + 1), 0, "{mask:x}");
                    assert_eq!((mask & !ways.all, mask == 0), (0, false), "{mask:x}");
                    assert!(mask.count_ones() >= ways.least.min(total), "{mask:x}");
                }
            }
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        let list = [("a", 4, 45)];
        assert_eq!(changed("a", &list, ALL).unwrap().unwrap(), "L3:0=f;1=f\nMB:0=50;1=50");
        assert_eq!(
            changed("a", &list, "L3:0=00f;1=7ff\nMB:0= 50;1= 50\n")
                .unwrap()
                .unwrap(),
            "L3:1=f"
        );
        assert_eq!(changed("a", &list, "L3:0=00f;1=00f\nMB:0= 50;1= 50\n"), Ok(None));
    }

    #[test]
    fn what_a_class_does_not_limit_is_as_in_the_default_group() {
        assert_eq!(
            changed("a", &[("a", 0, 10)], "L3:0=00f;1=7ff\nMB:0=10;1=10\n")
                .unwrap()
                .unwrap(),
            "L3:0=7ff"
        );
        let default = "L3:0=700;1=7ff";
        let change = change(
            "a",
            &classes(&[("a", 0, 0)]),
            hardware(),
            "L3:0=7ff;1=7ff\nL2:0=f\n",
            default,
        );
        assert_eq!(change.unwrap().unwrap(), "L3:0=700");
    }

    #[test]
    fn code_and_data_are_limited_both() {
        let now = "L3DATA:0=7ff\nL3CODE:0=7ff\nMB:0=100";
        assert_eq!(
            changed("a", &[("a", 3, 0)], now).unwrap().unwrap(),
            "L3CODE:0=7\nL3DATA:0=7"
        );
    }

    #[test]
    fn what_this_hardware_cannot_do_is_said() {
        let error =
            |list: &[(&str, u32, u32)], hardware, now| change("a", &classes(list), hardware, now, ALL).unwrap_err();
        assert!(error(&[("a", 12, 0)], hardware(), ALL).contains("L3 has 11 ways here"));
        assert!(error(&[("a", 4, 0)], Hardware::default(), ALL).contains("does not allocate L3"));
        assert!(error(&[("a", 4, 0)], hardware(), "MB:0=100").contains("does not allocate L3"));
        assert!(error(&[("a", 0, 50)], Hardware::default(), ALL).contains("does not allocate memory bandwidth"));
        assert!(error(&[("a", 0, 101)], hardware(), ALL).contains("expected 1 to 100"));
        assert!(
            error(&[("a", 0, 50)], hardware(), "L3:0=7ff\nMB:0=2048").contains("another unit here: a group has 2048")
        );
        assert!(error(&[("b", 4, 0)], hardware(), ALL).contains("no such class"));
    }

    #[test]
    fn bandwidth_is_rounded_up() {
        let now = parse(ALL);
        let given =
            [1, 10, 11, 91, 100].map(|asked| rounded_bandwidth(asked, hardware().bandwidth, now.get("MB")).unwrap());
        assert_eq!(given, [10, 10, 20, 100, 100]);
    }
}
