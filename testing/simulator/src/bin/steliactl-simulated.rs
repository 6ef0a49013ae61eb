//! `steliactl`, built as a program of this package for its integration tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    steliactl::main()
}
