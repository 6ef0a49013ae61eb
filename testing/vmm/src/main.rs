//! The program: see the library.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod guest;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod idle;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod process;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(dead_code, reason = "what imitates a VMM by its shape needs a guest")
)]
mod shape;

use std::path::PathBuf;

use clap::Parser;
use test_vmm::recording::Vmm;

#[derive(Debug, Parser)]
struct Options {
    /// The VMM whose process and threads this one's look like
    #[arg(long)]
    like: Vmm,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    vcpus: u8,
    /// The guest's memory: vCPU n counts in the 4 bytes at 0x2000 + 4 n. Made anew
    #[arg(long)]
    memory: Option<PathBuf>,
    /// Be the process of a device: bear this name, and have the threads that standard input names
    #[arg(long, hide = true)]
    device: Option<String>,
    /// Start that process in PID and user namespaces of its own instead
    #[arg(long, hide = true, requires = "device")]
    namespaces: bool,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn main() -> anyhow::Result<()> {
    process::main(&Options::parse())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn main() -> anyhow::Result<()> {
    let shape = shape::Shape::of(Options::parse().like)?;
    anyhow::bail!(
        "the guest has code for x86-64 and arm64 only: {} cannot be imitated on this architecture",
        shape.program()
    )
}
