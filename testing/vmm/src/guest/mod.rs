//! The guest: each vCPU counts in a word of its own of the guest's memory, in the state that it has after reset, and never exits by
//! itself until it is shut down.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress,
};

#[cfg(target_arch = "aarch64")]
use self::aarch64 as architecture;
#[cfg(target_arch = "x86_64")]
use self::x86_64 as architecture;

/// All of the guest's memory, in bytes: a single page where the host's are of 64K.
const SIZE: usize = 0x1_0000;
const CODE: u64 = 0x1000;
/// Where the first vCPU counts, 4 bytes each.
const COUNTERS: u64 = 0x2000;

/// A word that says whether the guest is shut down. The code is not changed for that: a processor of arm64 may have the old one in its
/// instruction cache. It is far from the counters, so that reading it does not slow them down.
const SHUT_DOWN: u64 = 0x3000;

/// A VM's memory, and those of its vCPUs that nobody has taken.
pub struct Guest {
    memory: GuestMemoryMmap,
    vcpus: Vec<Vcpu>,
}

/// A vCPU with the mapping that it counts in. It keeps the VM in being as well.
pub struct Vcpu {
    vcpu: VcpuFd,
    _memory: GuestMemoryMmap,
}

impl Guest {
    /// Its memory is `file`, so that others can read the counters, or nobody's.
    pub fn new(vcpus: u8, file: Option<&Path>) -> anyhow::Result<Self> {
        let memory = memory(file)?;
        memory
            .write_slice(&architecture::code(), GuestAddress(CODE))
            .context("write the guest's code")?;
        let kvm = Kvm::new().context("open /dev/kvm")?;
        let vm = kvm.create_vm().context("KVM_CREATE_VM")?;
        architecture::prepare(&vm)?;
        give_memory(&vm, &memory)?;
        let vcpus = (0..vcpus).map(|index| {
            let vcpu = vcpu(&vm, index)?;
            let _memory = memory.clone();
            Ok(Vcpu { vcpu, _memory })
        });
        let vcpus = vcpus.collect::<anyhow::Result<_>>()?;
        Ok(Self { memory, vcpus })
    }

    /// Has every vCPU leave the guest, as at the end of an operating system's shutdown.
    pub fn shut_down(&self) -> anyhow::Result<()> {
        let told = self.memory.store(1_u32, GuestAddress(SHUT_DOWN), Ordering::SeqCst);
        told.context("write the guest's end")
    }

    /// The vCPUs, each to be run by a thread of its own.
    pub fn take_vcpus(&mut self) -> Vec<Vcpu> {
        std::mem::take(&mut self.vcpus)
    }

    /// Whether each of these vCPUs has counted.
    pub fn has_counted(&self, vcpus: u8) -> anyhow::Result<bool> {
        for index in 0..vcpus {
            let counted: u32 = self
                .memory
                .load(counter(index), Ordering::Relaxed)
                .context("read a counter")?;
            if counted == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn counter(index: u8) -> GuestAddress {
    GuestAddress(COUNTERS + 4 * u64::from(index))
}

fn memory(file: Option<&Path>) -> anyhow::Result<GuestMemoryMmap> {
    let offset = match file {
        Some(path) => {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(true).open(path);
            let file = file.with_context(|| format!("create {}", path.display()))?;
            file.set_len(SIZE as u64)
                .with_context(|| format!("resize {}", path.display()))?;
            Some(FileOffset::new(file, 0))
        }
        None => None,
    };
    GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), SIZE, offset)]).context("map the guest's memory")
}

/// Have the VM see this memory from address 0 on.
fn give_memory(vm: &VmFd, memory: &GuestMemoryMmap) -> anyhow::Result<()> {
    let region = memory.iter().next().context("the guest's memory has no region")?;
    let address = region
        .get_host_address(MemoryRegionAddress(0))
        .context("the guest's memory has no address")?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: region.len(),
        userspace_addr: address as u64,
    };
    // SAFETY: the mapping has this address and length, this program reads it only by vm-memory's volatile accesses, and each
    // `Vcpu` holds it: nothing runs in the VM after it is unmapped.
    #[allow(unsafe_code)]
    unsafe { vm.set_user_memory_region(region) }.context("KVM_SET_USER_MEMORY_REGION")
}

/// A vCPU that will start with the loop and with its counter's address.
fn vcpu(vm: &VmFd, index: u8) -> anyhow::Result<VcpuFd> {
    let vcpu = vm.create_vcpu(index.into()).context("KVM_CREATE_VCPU")?;
    architecture::set_registers(vm, &vcpu, counter(index).0)?;
    Ok(vcpu)
}

impl Vcpu {
    /// Run the guest's loop on this thread, until it is shut down or fails.
    pub fn run(&mut self) -> anyhow::Result<()> {
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::Intr) => {}
                Ok(exit) if architecture::is_shut_down(&exit) => return Ok(()),
                Ok(exit) => bail!("the guest left its loop: {exit:?}"),
                Err(error) if io::Error::from_raw_os_error(error.errno()).kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("KVM_RUN"),
            }
        }
    }
}
