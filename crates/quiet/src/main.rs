//! `steliad-quiet`; see [`steliad_quiet::service::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steliad_quiet::service::program::main()
}
