//! `steliactl`: see what steliad holds on this node, and tell it what to do. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    steliactl::main()
}
