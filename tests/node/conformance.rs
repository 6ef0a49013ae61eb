//! The model of the kernel against the kernel: the same operations on both, with the same outcomes.

use std::fs;
use std::path::Path;
use std::process::Command;

use stelia_kernel::cgroup::{CgroupPath, KernelCgroups};
use stelia_testnode::conformance;

use crate::support::*;

/// Remove a cgroup and what is in it.
fn remove_tree(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

#[test]
fn the_model_keeps_the_rules_of_this_kernel() {
    on_node(|| {
        let control = format!("{CGROUP}/cgroup.subtree_control");
        fs::write(&control, "+cpuset +cpu +memory +pids").expect(&control);
        let mut process = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let base = CgroupPath::parse("/conformance").expect("a path");
        let mismatches = conformance::run(&KernelCgroups::new(CGROUP), &base, process.id().cast_signed());
        process.kill().expect("kill");
        process.wait().expect("wait");
        let directory = Path::new(CGROUP).join("conformance");
        wait_until("its cgroups gone", || {
            remove_tree(&directory);
            !directory.exists()
        });
        assert!(mismatches.is_empty(), "{mismatches:#?}");
    });
}
