//! `/proc/<pid>/stat` of a kernel thread (proc_pid_stat(5)).

/// Flag of kernel threads (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;
/// Flag of threads for which sched_setaffinity(2) answers EINVAL.
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;

/// The fields that are used.
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
    // The name may have blanks and parentheses: it ends with the last one.
    let (before, after) = text.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut fields = after.split_whitespace();
    // Field 3 is the first one behind the name.
    let flags = fields.nth(9 - 3)?.parse().ok()?;
    let start = fields.nth(22 - 10)?.parse().ok()?;
    let name = name.to_owned();
    Some(Stat { name, flags, start })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = parse(&format!("77 (napi/a) b)-1) {}\n", fields.join(" "))).unwrap();
        assert_eq!((stat.name.as_str(), stat.flags, stat.start), ("napi/a) b)-1", 9, 22));
        for other in ["", "7 napi S 2", "7 (napi) S 2 0"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
