//! The guest's code and registers on arm64: exception level 1 with the MMU off, in which a vCPU starts.
//!
//! The VM has no interrupt controller. The vCPUs do not use PSCI to end: at a SYSTEM_OFF of one of them KVM stops the others, whose threads
//! stay in KVM_RUN.

use std::mem::offset_of;

use anyhow::Context;
use kvm_bindings::{KVM_REG_ARM_CORE, KVM_REG_ARM64, KVM_REG_SIZE_U64, kvm_regs, kvm_vcpu_init};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use super::{CODE, SHUT_DOWN, SIZE};

/// With its MMU off a vCPU reads and writes past the caches, unless the processor has FEAT_S2FWB. The program's writes are in them, and so
/// are its reads: `dc civac` cleans them, so that each of the two sees what the other wrote.
const LOOP: [u32; 7] = [
    0x1100_0400, // add w0, w0, #1
    0xb900_0020, // str w0, [x1]: the counter
    0xd50b_7e21, // dc civac, x1
    0xd50b_7e22, // dc civac, x2
    0xb940_0044, // ldr w4, [x2]: whether the guest is shut down
    0x34ff_ff64, // cbz w4 to the first instruction
    0xb900_0064, // str w4, [x3]: where no memory is, which ends KVM_RUN
];

/// The first address that is no memory.
const NO_MEMORY: u64 = SIZE as u64;

pub fn code() -> Vec<u8> {
    LOOP.iter().flat_map(|instruction| instruction.to_le_bytes()).collect()
}

/// Nothing is needed but what each vCPU is told.
pub fn prepare(_vm: &VmFd) -> anyhow::Result<()> {
    Ok(())
}

pub fn set_registers(vm: &VmFd, vcpu: &VcpuFd, counter: u64) -> anyhow::Result<()> {
    let mut processor = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut processor)
        .context("KVM_ARM_PREFERRED_TARGET")?;
    vcpu.vcpu_init(&processor).context("KVM_ARM_VCPU_INIT")?;
    let general = [0, counter, SHUT_DOWN, NO_MEMORY];
    for (at, value) in general.into_iter().enumerate() {
        set(vcpu, offset_of!(kvm_regs, regs.regs) + at * size_of::<u64>(), value)?;
    }
    set(vcpu, offset_of!(kvm_regs, regs.pc), CODE)
}

/// Set the register at this offset in KVM's structure of them, which KVM counts in words of 32 bits.
fn set(vcpu: &VcpuFd, offset: usize, value: u64) -> anyhow::Result<()> {
    let register = (offset / size_of::<u32>()) as u64;
    let register = KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | register;
    let set = vcpu.set_one_reg(register, &value.to_le_bytes());
    set.map(drop).context("KVM_SET_ONE_REG")
}

pub fn is_shut_down(exit: &VcpuExit<'_>) -> bool {
    matches!(exit, VcpuExit::MmioWrite(NO_MEMORY, _))
}
