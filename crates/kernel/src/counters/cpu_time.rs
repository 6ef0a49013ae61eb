//! `/proc/stat`: where the time of each online CPU went (proc_stat(5)).

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, MAX_CPUS};

use super::{ParseError, words};

/// Times of a CPU since boot, in ticks of USER_HZ, which is 100 a second on every kernel's ABI that this runs on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// It ran tasks, or handled interrupts.
    pub busy: u64,
    /// A hypervisor below this host took it.
    pub stolen: u64,
    /// All of its time, idle or not.
    pub total: u64,
}

/// The text of `/proc/stat`: the first eight values of wanted CPUs' lines.
///
/// # Errors
/// A wanted CPU's line without eight numbers.
#[inline]
pub fn parse(text: &[u8], wanted: &CpuSet) -> Result<BTreeMap<u32, CpuTime>, ParseError> {
    let mut times = BTreeMap::new();
    // The CPUs come first, and behind them there are long lines.
    let cpus = words::lines(text)?.take_while(|line| line.starts_with(b"cpu"));
    for line in cpus {
        let mut words = words::Words(&line[b"cpu".len()..]);
        if words.0.first().is_none_or(|byte| *byte == b' ') {
            // The sum of all.
            continue;
        }
        let wrong = || ParseError::line(line);
        let number = words.number().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|cpu| *cpu < MAX_CPUS).ok_or_else(wrong)?;
        if !wanted.contains(number) {
            continue;
        }
        let mut values = [0; 8];
        for value in &mut values {
            *value = words.number().ok_or_else(wrong)?;
        }
        let sum = |values: &[u64]| values.iter().fold(0, |sum: u64, value| sum.saturating_add(*value));
        let [user, nice, system, _, _, irq, softirq, stolen] = values;
        let time = CpuTime {
            busy: sum(&[user, nice, system, irq, softirq]),
            stolen,
            total: sum(&values),
        };
        if times.insert(number, time).is_some() {
            return Err(wrong());
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_wanted_cpus() {
        let text = b"cpu  47860 0 21461 198301 2890 0 269 124 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu3 1 2 3 4 5 6 7 80 9 10\nintr 5\ncpu1 x\n";
        let time = CpuTime {
            busy: 1 + 2 + 3 + 6 + 7,
            stolen: 80,
            total: 28 + 80,
        };
        assert_eq!(
            parse(text, &"1-3".parse().expect("a list")),
            Ok(BTreeMap::from([(3, time)]))
        );
    }

    #[test]
    fn another_form_is_an_error() {
        for text in [
            "cpu0 1 2 3 4 5 6 7\n",
            "cpux 1\n",
            "cpu0 1 2 3 4 5 6 7 x\n",
            "cpu99999 1\n",
            "cpu0 1 2 3 4 5 6 7 8",
        ] {
            assert!(parse(text.as_bytes(), &CpuSet::below(1)).is_err(), "{text:?}");
        }
    }
}
