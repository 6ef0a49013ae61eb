//! `stelia-runner`: PID 1 of the VM's container. Everything is in [`steliad::runner`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steliad::runner::main()
}
