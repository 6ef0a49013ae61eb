//! How guests run in this node's pods, and QEMU's words for the usual one.

/// What executes a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// The node's own KVM, whose device pods get as a device plugin would give it.
    Kvm,
    /// QEMU's emulation, with a thread for each vCPU.
    Tcg,
}

impl Accel {
    /// What this node has (`node run --guest`).
    pub fn of_node() -> Self {
        match std::env::var("NODE_GUEST").as_deref() {
            Ok("kvm") => Self::Kvm,
            _ => Self::Tcg,
        }
    }

    /// QEMU's words for it.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => &["-accel", "tcg,thread=multi"],
        }
    }

    /// The stand-in's words for its device.
    pub fn device(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["--device", "/dev/kvm"],
            Self::Tcg => &[],
        }
    }

    /// QEMU with a small guest that never ends. The names of its threads are so that the tests need not believe the daemon
    /// which of them are vCPUs.
    pub fn qemu(self) -> Vec<&'static str> {
        let rest = [
            "-m",
            "64",
            "-display",
            "none",
            "-nodefaults",
            "-name",
            "vm,debug-threads=on",
        ];
        [&["qemu-system-x86_64"], self.words(), &rest].concat()
    }
}
