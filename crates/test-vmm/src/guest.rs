//! The guest: each vCPU counts in a word of its own of the guest's memory, in real mode, and never exits by itself until it is shut
//! down.

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

/// All of the guest's memory, in bytes.
const SIZE: usize = 0x1_0000;
const CODE: u64 = 0x1000;
/// Where the first vCPU counts, 4 bytes each.
const COUNTERS: u64 = 0x2000;

/// `inc dword [bx]`, and a jump back to it.
const LOOP: [u8; 5] = [0x66, 0xff, 0x07, 0xeb, 0xfb];
/// Where the jump is.
const JUMP: u64 = CODE + 3;
/// `hlt`: without an interrupt controller in the kernel it ends KVM_RUN.
const HALT: u8 = 0xf4;

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
            .write_slice(&LOOP, GuestAddress(CODE))
            .context("write the guest's code")?;
        let kvm = Kvm::new().context("open /dev/kvm")?;
        let vm = kvm.create_vm().context("KVM_CREATE_VM")?;
        // Three pages that older Intel processors need for real mode; below the BIOS, where nothing else is.
        vm.set_tss_address(0xfffb_d000).context("KVM_SET_TSS_ADDR")?;
        give_memory(&vm, &memory)?;
        let vcpus = (0..vcpus).map(|index| {
            let vcpu = vcpu(&vm, index)?;
            let _memory = memory.clone();
            Ok(Vcpu { vcpu, _memory })
        });
        let vcpus = vcpus.collect::<anyhow::Result<_>>()?;
        Ok(Self { memory, vcpus })
    }

    /// Has every vCPU halt, as at the end of an operating system's shutdown.
    pub fn shut_down(&self) -> anyhow::Result<()> {
        let halted = self.memory.store(HALT, GuestAddress(JUMP), Ordering::SeqCst);
        halted.context("write the guest's end")
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

/// A vCPU that will start with the loop, in real mode, and with its counter's address.
fn vcpu(vm: &VmFd, index: u8) -> anyhow::Result<VcpuFd> {
    let vcpu = vm.create_vcpu(index.into()).context("KVM_CREATE_VCPU")?;
    let mut segments = vcpu.get_sregs().context("KVM_GET_SREGS")?;
    // After reset the code segment ends where the BIOS is.
    (segments.cs.base, segments.cs.selector) = (0, 0);
    vcpu.set_sregs(&segments).context("KVM_SET_SREGS")?;
    let mut registers = vcpu.get_regs().context("KVM_GET_REGS")?;
    registers.rip = CODE;
    registers.rbx = counter(index).0;
    registers.rflags = 2;
    vcpu.set_regs(&registers).context("KVM_SET_REGS")?;
    Ok(vcpu)
}

impl Vcpu {
    /// Run the guest's loop on this thread, until it is shut down or fails.
    pub fn run(&mut self) -> anyhow::Result<()> {
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::Intr) => {}
                Ok(VcpuExit::Hlt) => return Ok(()),
                Ok(exit) => bail!("the guest left its loop: {exit:?}"),
                Err(error) if io::Error::from_raw_os_error(error.errno()).kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("KVM_RUN"),
            }
        }
    }
}
