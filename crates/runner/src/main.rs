//! `stelia-runner`: PID 1 of the VM's container. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    stelia_runner::main()
}
