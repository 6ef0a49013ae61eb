//! `steliad-quiet`; see [`steliad_quiet::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steliad_quiet::program::main()
}
