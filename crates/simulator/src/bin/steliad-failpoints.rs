//! The daemon that dies before its n-th change of the system (`STELIAD_FAILPOINT=n`): the node's tests put it in the place of
//! the real one, to see what a crash leaves.

use std::process::ExitCode;

fn main() -> ExitCode {
    steliad::daemon::main_on(stelia_simulator::failpoint::beneath)
}
