//! The daemon; see [`steliad::daemon`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steliad::daemon::main()
}
