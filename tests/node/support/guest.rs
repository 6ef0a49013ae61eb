//! How guests run in this node's pods, and QEMU's words for the usual one.

/// QEMU's program for guests of this node's architecture.
pub const QEMU: &str = if cfg!(target_arch = "aarch64") {
    "qemu-system-aarch64"
} else {
    "qemu-system-x86_64"
};
/// The name of its process: the kernel keeps 15 bytes.
pub const QEMU_NAME: &str = QEMU.split_at(15).0;

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

    /// QEMU's words for it; on arm64, where QEMU has no built-in firmware, with a guest that waits (`tests/node/idle-arm64.S`).
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Self::Kvm if cfg!(target_arch = "aarch64") => &[
                "-machine",
                "virt,gic-version=host",
                "-kernel",
                "/job/idle-arm64.bin",
                "-accel",
                "kvm",
                "-cpu",
                "host",
            ],
            Self::Tcg if cfg!(target_arch = "aarch64") => &[
                "-machine",
                "virt",
                "-kernel",
                "/job/idle-arm64.bin",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "cortex-a57",
            ],
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
        [&[QEMU], self.words(), &rest].concat()
    }
}
