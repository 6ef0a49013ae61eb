//! `steliactl` as the tests beside it need it: built with them.

use std::process::ExitCode;

fn main() -> ExitCode {
    steliactl::main()
}
