//! `/proc/stat`: the time that a hypervisor below this host took from each online CPU (proc_stat(5)).

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, MAX_CPUS};

use super::{ParseError, words};

/// The text of `/proc/stat`: the 8th value of wanted CPUs' lines, in ticks of USER_HZ, which is 100 a second on every kernel's ABI
/// that this runs on.
///
/// # Errors
/// A wanted CPU's line without eight numbers.
#[inline]
pub fn parse(text: &[u8], wanted: &CpuSet) -> Result<BTreeMap<u32, u64>, ParseError> {
    let mut steal = BTreeMap::new();
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
        if wanted.contains(number) && steal.insert(number, words.number_after(7).ok_or_else(wrong)?).is_some() {
            return Err(wrong());
        }
    }
    Ok(steal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_value_of_wanted_cpus() {
        let text = b"cpu  47860 0 21461 198301 2890 0 269 124 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu3 1 2 3 4 5 6 7 80 9 10\nintr 5\ncpu1 x\n";
        assert_eq!(
            parse(text, &"1-3".parse().expect("a list")),
            Ok(BTreeMap::from([(3, 80)]))
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
