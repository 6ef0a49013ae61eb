#![doc = include_str!("../README.md")]

#[cfg(target_arch = "x86_64")]
mod guest;
mod shape;

use std::path::PathBuf;

use clap::Parser;

use crate::shape::Vmm;

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
    /// Be the process of a device: bear this name and do nothing
    #[arg(long, hide = true)]
    device: Option<String>,
}

#[cfg(target_arch = "x86_64")]
fn main() -> anyhow::Result<()> {
    process::main(&Options::parse())
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    anyhow::bail!(
        "the guest is x86 code: {} is not looked like here",
        options.like.program()
    )
}

#[cfg(target_arch = "x86_64")]
mod process;
