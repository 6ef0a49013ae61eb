//! What a VMM looks like from outside: as it was recorded.

use anyhow::Context;
use test_vmm::recording::{Moment, Process, Recording, Vmm};

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
        let recording = vmm.recording();
        let recording = recording.with_context(|| format!("read the recording of {vmm:?}"))?;
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
        for vmm in Vmm::ALL {
            let shape = Shape::of(vmm).unwrap();
            for moment in [Moment::Booting, Moment::Booted] {
                let own = &shape.recording.at(moment).unwrap()[0];
                let vcpus = own.threads.iter().filter(|name| name.starts_with(vmm.vcpu_prefix()));
                assert_eq!(
                    vcpus.collect::<Vec<_>>(),
                    [0, 1].map(|index| format!("{}{index}", vmm.vcpu_prefix())).each_ref()
                );
                assert!(
                    shape
                        .vm_creator()
                        .is_none_or(|name| own.threads.iter().any(|own| own == name))
                );
                assert_eq!((own.argv0.as_str(), own.comm.as_str()), (shape.program(), shape.comm()));
            }
            assert_eq!(shape.stays_when_shut_down(), vmm == Vmm::CloudHypervisor);
        }
    }
}
