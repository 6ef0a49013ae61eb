//! `/proc/<pid>/task/<pid>/stat` (proc_pid_stat(5)). In `/proc/<pid>/stat` the kernel sums the times over all threads of the process.

use std::str::FromStr;

/// Flag of kernel threads (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;
/// Flag of threads for which sched_setaffinity(2) answers EINVAL.
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;

/// What a thread is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The name; the kernel adds to that of a `kworker` what it works on.
    pub name: String,
    flags: u64,
    /// Ticks since boot, field 22.
    pub start: u64,
}

/// Parses the file's text; `None` if it has another form.
pub fn parse(text: &str) -> Option<Stat> {
    let (before, _) = text.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some(Stat {
        name: name.to_owned(),
        flags: field(text, 9)?,
        start: start_time(text)?,
    })
}

impl Stat {
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Whether the kernel lets nobody set its CPUs.
    pub fn refuses(&self) -> bool {
        self.flags & PF_NO_SETAFFINITY != 0
    }

    /// Whether its mask is its own: that of `irq/*` follows the interrupt's, and that of `kworker/*`, except rescuers, the
    /// workqueues'.
    pub fn has_own_mask(&self) -> bool {
        let follows = self.name.starts_with("irq/") || self.name.starts_with("kworker/");
        !follows || self.name.starts_with("kworker/R-")
    }
}

/// When the thread started, in clock ticks since boot.
pub fn start_time(stat: &str) -> Option<u64> {
    field(stat, 22)
}

/// How long the thread ran, as a user's and in the kernel, in clock ticks: USER_HZ is 100 on every architecture systemd's users run
/// (`include/asm-generic/param.h`).
pub fn cpu_ticks(stat: &str) -> Option<u64> {
    Some(field::<u64>(stat, 14)?.saturating_add(field(stat, 15)?))
}

/// The CPU that the thread runs on, or ran on last.
pub fn cpu(stat: &str) -> Option<u32> {
    field(stat, 39)
}

/// How long the thread has run a guest, in clock ticks.
pub(super) fn guest_time(stat: &str) -> Option<u64> {
    field(stat, 43)
}

/// By its number in the manual page. The name (field 2) may hold spaces and parentheses: field 3 begins after the last ')'.
fn field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(number - 3)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let text = format!("77 (napi/a) b)-1) {}\n", fields.join(" "));
        let stat = parse(&text).unwrap();
        assert_eq!((stat.name.as_str(), stat.flags, stat.start), ("napi/a) b)-1", 9, 22));
        assert_eq!((start_time(&text), guest_time(&text)), (Some(22), Some(43)));
        assert_eq!((cpu_ticks(&text), cpu(&text)), (Some(14 + 15), Some(39)));
        for other in ["", "7 napi S 2", "7 (napi) S 2 0"] {
            assert_eq!((parse(other), cpu_ticks(other)), (None, None), "{other}");
        }
    }
}
