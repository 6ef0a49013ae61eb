//! crosvm, adopted.

use super::adopted::{of_containers, rule, test_life_and_restore};
use super::{Vm, Vmm, Way, guest};
use crate::support::*;

#[test]
fn crosvm_in_the_slice() {
    test_life_and_restore(Vmm::Crosvm, Way::Slice, &rule(Vmm::Crosvm, ""));
}

#[test]
fn crosvm_as_container() {
    test_life_and_restore(Vmm::Crosvm, Way::Container, &of_containers(Vmm::Crosvm));
}

#[test]
fn crosvm_without_its_sandbox_in_the_slice() {
    adopting(&rule(Vmm::Crosvm, ""), || {
        let words = [vec!["--disable-sandbox".to_owned()], guest::words(Vmm::Crosvm)].concat();
        let vm = Vm::start_words(Vmm::Crosvm, Way::Slice, &words);
        vm.until_isolated("boot", 2);
        vm.until_alive("boot", 0);
        vm.pause_and_resume();
        vm.must_tell_crosvm(&["stop"]);
        vm.until_given_back("stop");
    });
}
