//! The daemon, killed before its n-th change of the system (`STELIAD_FAILPOINT=n`). The node tests mount it over the packaged one.

use std::process::ExitCode;

fn main() -> ExitCode {
    steliad::daemon::main_on(stelia_simulator::failpoint::beneath)
}
