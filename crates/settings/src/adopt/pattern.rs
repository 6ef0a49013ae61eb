//! What names are compared with: of namespaces, pods, containers and programs, and of threads.

use std::fmt;

/// Limit of a pattern, in bytes: a pod's name is not longer.
const MAX_PATTERN_BYTES: usize = 253;
/// Limit of a thread's name, in bytes: the kernel cuts it there (`TASK_COMM_LEN`, with its end).
pub const MAX_THREAD_NAME_BYTES: usize = 15;
/// What stands for the number in the name of a thread.
const NUMBER: &str = "{n}";
/// Limit of the digits of a number in a thread's name.
const MAX_NUMBER_DIGITS: usize = 4;

/// A name, in which `*` stands for any characters, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// `None` for a text that is empty, longer than 253 bytes, or has control characters.
    pub fn parse(text: &str) -> Option<Self> {
        let good = (1..=MAX_PATTERN_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
        good.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the whole text fits. The cost grows with the product of both lengths, never faster.
    pub fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return text == &*self.0;
        };
        let Some(mut text) = text.strip_prefix(first) else {
            return false;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The earliest place for each part leaves most for those behind it.
        for part in middle.split('*') {
            match text.split_once(part) {
                Some((_, after)) => text = after,
                None if part.is_empty() => {}
                None => return false,
            }
        }
        text.ends_with(last)
    }
}

/// The name of a vCPU's thread, with the vCPU's index in it: `CPU {n}/KVM`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadName {
    before: Box<str>,
    after: Box<str>,
}

impl ThreadName {
    /// `None` for a text without exactly one `{n}`, with nothing else, with a digit beside it, or too long for the kernel.
    pub fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.split_once(NUMBER)?;
        let length = before.len() + after.len();
        let digit = |char: char| char.is_ascii_digit();
        let good = (1..MAX_THREAD_NAME_BYTES).contains(&length)
            && !after.contains(NUMBER)
            && !text.chars().any(char::is_control)
            && !before.ends_with(digit)
            && !after.starts_with(digit);
        good.then(|| Self {
            before: before.into(),
            after: after.into(),
        })
    }

    /// The index in the name of a thread; `None` for a thread that is not a vCPU's. The number has at most four digits, and
    /// is written as programs write numbers.
    pub fn index(&self, name: &str) -> Option<u32> {
        let number = name.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let digits =
            (1..=MAX_NUMBER_DIGITS).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        let canonical = digits && (number.len() == 1 || !number.starts_with('0'));
        canonical.then(|| number.parse().ok())?
    }
}

impl fmt::Display for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{NUMBER}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let fits = |pattern: &str, text: &str| Pattern::parse(pattern).unwrap().matches(text);
        for (pattern, text) in [
            ("compute", "compute"),
            ("*", ""),
            ("*", "a"),
            ("virt-launcher-*", "virt-launcher-web-x7k2p"),
            ("*-vm", "a-vm"),
            ("a*b*c", "aXbYbZc"),
            ("a*b*c", "abc"),
            ("**a**", "bab"),
            ("qemu-system-*", "qemu-system-x86"),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("compute", "compute2"),
            ("virt-launcher-*", "web"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
            ("*ab*ab*", "xaby"),
            ("a?", "ab"),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
        assert_eq!(Pattern::parse(""), None);
        assert_eq!(Pattern::parse("a\nb"), None);
        assert_eq!(Pattern::parse(&"a".repeat(254)), None);
    }

    #[test]
    fn a_threads_name_has_one_number() {
        let index = |pattern: &str, name: &str| ThreadName::parse(pattern).unwrap().index(name);
        assert_eq!(index("CPU {n}/KVM", "CPU 12/KVM"), Some(12));
        assert_eq!(index("vcpu{n}", "vcpu0"), Some(0));
        assert_eq!(index("fc_vcpu {n}", "fc_vcpu 3"), Some(3));
        assert_eq!(index("crosvm_vcpu{n}", "crosvm_vcpu9999"), Some(9999));
        for name in [
            "CPU /KVM",
            "CPU 01/KVM",
            "CPU +1/KVM",
            "CPU 1/TCG",
            "CPU 10000/KVM",
            "CPU 1",
            "CPU ²/KVM",
            "",
        ] {
            assert_eq!(index("CPU {n}/KVM", name), None, "{name}");
        }
        for bad in [
            "",
            "{n}",
            "CPU",
            "{n}{n}",
            "a{n}b{n}",
            "v1{n}",
            "v{n}1",
            "a\n{n}",
            "0123456789abcd {n}",
        ] {
            assert_eq!(ThreadName::parse(bad), None, "{bad}");
        }
        assert_eq!(ThreadName::parse("CPU {n}/KVM").unwrap().to_string(), "CPU {n}/KVM");
    }
}
