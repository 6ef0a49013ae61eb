//! CPU lists: of kubelet, of the kernel, and of a pod that asks for its registration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_cpus::{CpuSet, MAX_CPUS};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    let set: CpuSet = match text.parse() {
        Ok(set) => set,
        Err(error) => return fits(&error),
    };
    // What is printed is read as the same set.
    let printed = set.to_string();
    same(&printed.parse(), &Ok(set.clone()), "printed and read again");
    same(
        &format!("{printed}\n").parse(),
        &Ok(set.clone()),
        "with the kernel's newline",
    );
    // It is the kernel's form: ascending runs, none of which touches the next.
    let mut next = 0;
    let mut count = 0;
    for part in printed.split(',').filter(|part| !part.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high): (u32, u32) = (low.parse().unwrap(), high.parse().unwrap());
        assert!(low >= next && low <= high && high < MAX_CPUS, "{printed}");
        assert!(part.contains('-') == (low < high), "{printed}");
        count += high - low + 1;
        next = high + 2;
    }
    assert_eq!(count as usize, set.len());
    // Neither the order of the parts nor a repeated part changes the set.
    let list = text.strip_suffix('\n').unwrap_or(text);
    let backwards: Vec<&str> = list.rsplit(',').collect();
    same(&backwards.join(",").parse(), &Ok(set.clone()), "backwards");
    if !list.is_empty() {
        same(&format!("{list},{list}").parse(), &Ok(set.clone()), "twice");
    }
    // systemd's mask holds the same CPUs, and no byte more than it needs.
    let mask = set.to_systemd_mask();
    let bit = |cpu: u32| {
        mask.get(cpu as usize / 8)
            .is_some_and(|byte| byte & (1 << (cpu % 8)) != 0)
    };
    assert!((0..MAX_CPUS).all(|cpu| bit(cpu) == set.contains(cpu)));
    assert!(mask.last() != Some(&0));
});
