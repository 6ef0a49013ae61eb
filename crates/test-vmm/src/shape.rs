//! What a VMM looks like from outside: its name, its threads, and which of them makes the VM.
//!
//! The names of vCPU threads stand also in the ready-made rules of adoption (`crates/settings/src/adopt/ready_made.rs`) and in
//! `crates/runner/src/vmm/thread_names.rs`.

use clap::ValueEnum;

/// The VMM that is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Vmm {
    CloudHypervisor,
    Firecracker,
    Crosvm,
}

impl Vmm {
    /// The program: `argv[0]`, and the main thread's name as far as the kernel keeps it.
    pub fn program(self) -> &'static str {
        match self {
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Firecracker => "firecracker",
            Self::Crosvm => "crosvm",
        }
    }

    /// The thread that makes the VM and starts the vCPUs. None: the main thread.
    pub fn maker(self) -> Option<&'static str> {
        match self {
            Self::CloudHypervisor => Some("vmm"),
            Self::Firecracker | Self::Crosvm => None,
        }
    }

    /// Whether the process stays when its guest was shut down, and can boot another. The others end.
    pub fn stays_when_shut_down(self) -> bool {
        self == Self::CloudHypervisor
    }

    pub fn vcpu(self, index: u8) -> String {
        match self {
            Self::CloudHypervisor => format!("vcpu{index}"),
            Self::Firecracker => format!("fc_vcpu {index}"),
            Self::Crosvm => format!("crosvm_vcpu{index}"),
        }
    }

    /// The process's other threads. The kernel keeps 15 bytes of a name.
    pub fn helpers(self) -> &'static [&'static str] {
        match self {
            Self::CloudHypervisor => &[
                "http-server",
                "vmm_signal_handler",
                "_disk0_q0",
                "_net1_qp0",
                "__rng",
                "__console",
            ],
            Self::Firecracker => &["fc_api"],
            Self::Crosvm => &[],
        }
    }

    /// The names of its child processes: crosvm forks one for each device.
    pub fn devices(self) -> &'static [&'static str] {
        match self {
            Self::CloudHypervisor | Self::Firecracker => &[],
            Self::Crosvm => &["pcivirtio-block", "pcivirtio-net"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_of_a_vmm_have_the_same_name_once_the_kernel_has_cut_it() {
        for vmm in Vmm::value_variants() {
            let vcpus = (0..u8::MAX).map(|index| vmm.vcpu(index));
            let others = vmm.helpers().iter().chain(vmm.devices()).copied();
            let names = [vmm.program()].into_iter().chain(vmm.maker()).chain(others);
            let mut names: Vec<String> = names.map(str::to_owned).chain(vcpus).collect();
            names.iter_mut().for_each(|name| name.truncate(15));
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{vmm:?}");
        }
    }
}
