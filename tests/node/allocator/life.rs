//! Allocations outlive the daemon, and nothing else.

use super::{all_but, given, on_allocator, vm, wait_pool};
use crate::support::*;

#[test]
fn a_container_that_dies_frees_its_cpus_for_the_next() {
    on_allocator("", || {
        let machine = vm("machine", 2, &[], &[]);
        assert_isolated(&machine, 2);
        let sleeper = Sleeper::start("sleeper", &[]);
        let other = sleeper.get("cpus=2");
        assert!(other.is_disjoint(&machine.exclusive()));
        machine.kill();
        wait_pool("exclusive", &other.to_string());
        let again = given(machine.restart());
        assert_eq!(again.exclusive(), machine.exclusive());
        assert_isolated(&again, 2);
        // While nobody looks.
        run("systemctl stop steliad.service");
        again.kill();
        run("systemctl start steliad.service");
        wait_pool("exclusive", &other.to_string());
        wait_pool("allocatable", &all_but(&[&other]).to_string());
        sleeper.pod.kill();
        wait_pool("exclusive", "");
    });
}
