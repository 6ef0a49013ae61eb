//! The guest's code and registers on x86-64: real mode, in which a vCPU starts.

use anyhow::Context;
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use super::{CODE, SHUT_DOWN};

const LOOP: [u8; 9] = [
    0x66, 0xff, 0x07, // inc dword [bx]: the counter
    0x80, 0x3c, 0x00, // cmp byte [si], 0: whether the guest is shut down
    0x74, 0xf8, // je to the first instruction
    0xf4, // hlt: without an interrupt controller in the kernel it ends KVM_RUN
];

pub fn code() -> Vec<u8> {
    LOOP.to_vec()
}

/// Three pages that older Intel processors need for real mode; below the BIOS, where nothing else is.
pub fn prepare(vm: &VmFd) -> anyhow::Result<()> {
    vm.set_tss_address(0xfffb_d000).context("KVM_SET_TSS_ADDR")
}

pub fn set_registers(_vm: &VmFd, vcpu: &VcpuFd, counter: u64) -> anyhow::Result<()> {
    let mut segments = vcpu.get_sregs().context("KVM_GET_SREGS")?;
    // After reset the code segment ends where the BIOS is.
    (segments.cs.base, segments.cs.selector) = (0, 0);
    vcpu.set_sregs(&segments).context("KVM_SET_SREGS")?;
    let mut registers = vcpu.get_regs().context("KVM_GET_REGS")?;
    registers.rip = CODE;
    registers.rbx = counter;
    registers.rsi = SHUT_DOWN;
    registers.rflags = 2;
    vcpu.set_regs(&registers).context("KVM_SET_REGS")
}

pub fn is_shut_down(exit: &VcpuExit<'_>) -> bool {
    matches!(exit, VcpuExit::Hlt)
}
