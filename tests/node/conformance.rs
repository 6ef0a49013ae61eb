//! The model of the kernel against the kernel: the same operations on both, with the same outcomes.

use std::fs;
use std::path::Path;
use std::process::Command;

use stelia_kernel::cgroup::{CgroupPath, KernelCgroups};
use stelia_testnode::conformance;

use crate::support::*;

#[test]
fn the_model_keeps_the_rules_of_this_kernel() {
    on_node(|| {
        let control = format!("{CGROUP}/cgroup.subtree_control");
        fs::write(&control, "+cpuset +cpu +memory +pids").expect(&control);
        let process = Killed(Command::new("sleep").arg("1000").spawn().expect("sleep"));
        let base = CgroupPath::parse("/conformance").expect("a path");
        let mismatches = conformance::run(&KernelCgroups::new(CGROUP), &base, process.0.id().cast_signed());
        drop(process);
        let directory = format!("{CGROUP}/conformance");
        wait_until("its cgroups gone", || {
            output(&["find", &directory, "-depth", "-type", "d", "-delete"]);
            !Path::new(&directory).exists()
        });
        assert!(mismatches.is_empty(), "{mismatches:#?}");
    });
}
