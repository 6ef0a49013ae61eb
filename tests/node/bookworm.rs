//! The fallback on a kernel without partitions that take CPUs from others: Debian 12 (kernel 6.1, systemd 252). Its runner
//! socket has no SO_PEERPIDFD either.

use crate::ledger::a_contained_vms_intruder_is_booked_and_named;
use crate::pinned::contained_from_start_to_end;
use crate::quiet::kept_off_and_given_back;
use crate::quiet::trace::an_intruder_is_named_with_each_of_its_switches;
use crate::support::*;

#[test]
fn an_instance_is_contained_where_the_kernel_has_no_partitions() {
    on_node(|| {
        assert!(run("uname -r").starts_with("6.1."), "this is for another image");
        contained_from_start_to_end();
        assert!(!std::path::Path::new(&format!("{SLICE}/cpuset.cpus.exclusive")).exists());
    });
}

#[test]
fn interrupts_are_kept_off_a_contained_vms_cpus() {
    on_node(kept_off_and_given_back);
}

#[test]
fn who_runs_on_a_contained_vms_cpus_is_booked_and_named() {
    on_node(|| a_contained_vms_intruder_is_booked_and_named(&Pod::vm("booked", 2)));
}

#[test]
fn two_contained_instances_come_and_go_one_by_one() {
    on_node(|| {
        let (one, two) = (Pod::vm("one", 2), Pod::vm("two", 2));
        for pod in [&one, &two] {
            pod.assert_is("pinned");
        }
        let list = || cpus(&read(format!("{CGROUP}/system.slice/cpuset.cpus")));
        assert!(list().is_disjoint(&one.exclusive().union(&two.exclusive())));
        one.delete(1);
        wait_until("its CPUs are the host's again", || {
            one.exclusive().is_subset(&list()) && list().is_disjoint(&two.exclusive())
        });
    });
}

#[test]
fn who_else_runs_on_a_contained_vms_cpus_is_named() {
    on_node(an_intruder_is_named_with_each_of_its_switches);
}
