//! `/proc/<pid>/schedstat` (`proc_pid_schedstat` in the kernel's `fs/proc/base.c`).

use super::{ParseError, words};

/// Counters of one thread since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Task {
    /// How long it ran, nanoseconds.
    pub run_ns: u64,
    /// How long it was runnable and did not run, nanoseconds.
    pub delay_ns: u64,
    /// How often it began to run (`pcount`).
    pub switches: u64,
}

/// The text: three numbers.
///
/// # Errors
/// Anything else.
#[inline]
pub fn parse(text: &[u8]) -> Result<Task, ParseError> {
    let line = words::lines(text)?.next().unwrap_or_default();
    let wrong = || ParseError::line(line);
    let mut words = words::Words(line);
    let mut number = || words.number().ok_or_else(wrong);
    let task = Task {
        run_ns: number()?,
        delay_ns: number()?,
        switches: number()?,
    };
    match words.rest() {
        [] => Ok(task),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_and_nothing_else() {
        let task = Task {
            run_ns: 35512868,
            delay_ns: 10917340,
            switches: 103,
        };
        assert_eq!(parse(b"35512868 10917340 103\n"), Ok(task));
        assert_eq!(parse(b"1 2 3"), Err(ParseError::Cut));
        for text in ["", "\n", "1 2\n", "1 2 3 4\n", "1 2 x\n", "-1 2 3\n"] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
