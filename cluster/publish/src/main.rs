//! `stelia-publish`; see [`stelia_publish::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    stelia_publish::program::main()
}
