//! What a VMM looks like from outside: as it was recorded.
//!
//! The names of vCPU threads stand also in the ready-made rules of adoption (`crates/settings/src/adopt/ready_made.rs`) and in
//! `crates/runner/src/vmm/thread_names.rs`.

use anyhow::Context;
use clap::ValueEnum;
use test_vmm::recording::{self, Moment, Process, Recording};

/// The VMM that is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Vmm {
    CloudHypervisor,
    Firecracker,
    Crosvm,
}

impl Vmm {
    fn vcpu_prefix(self) -> &'static str {
        match self {
            Self::CloudHypervisor => "vcpu",
            Self::Firecracker => "fc_vcpu ",
            Self::Crosvm => "crosvm_vcpu",
        }
    }

    pub fn vcpu(self, index: u8) -> String {
        format!("{}{index}", self.vcpu_prefix())
    }
}

/// A VMM's recording.
#[derive(Debug, Clone)]
pub struct Shape {
    pub vmm: Vmm,
    recording: Recording,
    /// While it boots.
    first: Process,
}

impl Shape {
    pub fn of(vmm: Vmm) -> anyhow::Result<Self> {
        let text = match vmm {
            Vmm::CloudHypervisor => recording::CLOUD_HYPERVISOR,
            Vmm::Firecracker => recording::FIRECRACKER,
            Vmm::Crosvm => recording::CROSVM,
        };
        let recording = Recording::parse(text).with_context(|| format!("read the recording of {vmm:?}"))?;
        let processes = recording.at(Moment::Booting).unwrap_or_default();
        let first = processes
            .first()
            .with_context(|| format!("no process of {vmm:?} is recorded"))?
            .clone();
        Ok(Self { vmm, recording, first })
    }

    /// `argv[0]`.
    pub fn program(&self) -> &str {
        &self.first.argv0
    }

    /// The main thread's name.
    pub fn comm(&self) -> &str {
        &self.first.comm
    }

    /// The thread that creates the VM and starts the vCPUs. None: the main thread.
    pub fn vm_creator(&self) -> Option<&str> {
        let name = &self.recording.vm_created_by;
        (*name != self.first.comm).then_some(name)
    }

    /// Whether the process stays when its guest was shut down, and can boot another. The others end.
    pub fn stays_when_shut_down(&self) -> bool {
        self.recording.at(Moment::ShutDown).is_some()
    }

    /// The threads of its own process that do nothing here: not those of the vCPUs, the one that creates the VM, and those that KVM makes.
    pub fn idle_threads(&self, moment: Moment) -> Vec<&str> {
        let own = self.recording.at(moment).and_then(|processes| processes.first());
        let threads = own.into_iter().flat_map(|own| &own.threads).map(String::as_str);
        let is_idle = |name: &&str| {
            !name.starts_with(self.vmm.vcpu_prefix()) && !name.starts_with("kvm-") && Some(*name) != self.vm_creator()
        };
        threads.filter(is_idle).collect()
    }

    /// The processes that it starts, one for each device.
    pub fn devices(&self, moment: Moment) -> &[Process] {
        let processes = self.recording.at(moment).unwrap_or_default();
        processes.split_first().map_or(&[], |(_, devices)| devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recording_has_a_boot_with_two_vcpus_and_the_thread_that_makes_the_vm() {
        for vmm in Vmm::value_variants() {
            let shape = Shape::of(*vmm).unwrap();
            for moment in [Moment::Booting, Moment::Booted] {
                let own = &shape.recording.at(moment).unwrap()[0];
                let vcpus = own.threads.iter().filter(|name| name.starts_with(vmm.vcpu_prefix()));
                assert_eq!(vcpus.collect::<Vec<_>>(), [&vmm.vcpu(0), &vmm.vcpu(1)]);
                assert!(
                    shape
                        .vm_creator()
                        .is_none_or(|name| own.threads.iter().any(|own| own == name))
                );
                assert_eq!((own.argv0.as_str(), own.comm.as_str()), (shape.program(), shape.comm()));
            }
            assert_eq!(shape.stays_when_shut_down(), *vmm == Vmm::CloudHypervisor);
        }
    }

    #[test]
    fn a_recording_is_written_as_it_was_read() {
        let text = recording::CROSVM;
        let recording = Recording::parse(text).unwrap();
        assert_eq!(serde_json::to_string_pretty(&recording).unwrap(), text.trim_end());
    }
}
