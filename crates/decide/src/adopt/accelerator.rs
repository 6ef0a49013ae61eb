//! Guests whose vCPUs are not KVM's, by QEMU's names of their threads.

/// What runs such a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accelerator {
    /// QEMU emulates it, each vCPU in a thread of its own.
    Emulated,
    /// QEMU emulates all its vCPUs in one thread.
    EmulatedInOneThread,
    /// Microsoft's hypervisor, `/dev/mshv`.
    Mshv,
}

impl Accelerator {
    /// By the name of a thread; `None` for any other thread.
    pub fn of(thread: &str) -> Option<Self> {
        if thread == Self::EmulatedInOneThread.threads() {
            return Some(Self::EmulatedInOneThread);
        }
        let (number, accelerator) = thread.strip_prefix("CPU ")?.split_once('/')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        match accelerator {
            "TCG" if is_number => Some(Self::Emulated),
            "MSHV" if is_number => Some(Self::Mshv),
            _ => None,
        }
    }

    /// The names of its threads.
    pub(crate) fn threads(self) -> &'static str {
        match self {
            Self::Emulated => "CPU {n}/TCG",
            Self::EmulatedInOneThread => "ALL CPUs/TCG",
            Self::Mshv => "CPU {n}/MSHV",
        }
    }

    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Emulated | Self::EmulatedInOneThread => "QEMU emulates this guest (accel=tcg):",
            Self::Mshv => "this guest's hypervisor is /dev/mshv, not KVM:",
        }
    }

    pub(crate) fn what_to_do(self) -> &'static str {
        match self {
            Self::Emulated => ": a rule with threads = \"CPU {n}/TCG\" adopts it",
            Self::EmulatedInOneThread => ": one thread runs all its vCPUs, and nothing can be isolated",
            Self::Mshv => ": such guests were not tried and are not adopted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_qemus_own_names_say_what_runs_a_guest() {
        for (name, is) in [
            ("CPU 0/TCG", Some(Accelerator::Emulated)),
            ("CPU 12/MSHV", Some(Accelerator::Mshv)),
            ("ALL CPUs/TCG", Some(Accelerator::EmulatedInOneThread)),
            ("CPU 0/KVM", None),
            ("CPU /TCG", None),
            ("CPU x/TCG", None),
            ("vcpu0", None),
            ("", None),
        ] {
            assert_eq!(Accelerator::of(name), is, "{name}");
        }
    }
}
