//! crosvm, adopted.

use rstest::rstest;

use super::adopted::{rule, test_life_and_restore};
use super::{Vm, Vmm, Way, guest};
use crate::support::*;

#[rstest]
fn whole_life_and_restore(#[values(Way::Slice, Way::Container)] way: Way) {
    test_life_and_restore(Vmm::Crosvm, way);
}

#[test]
fn without_its_sandbox_in_the_slice() {
    configured_on_kvm(&rule(Vmm::Crosvm, Way::Slice), || {
        let words = [vec!["--disable-sandbox".to_owned()], guest::words(Vmm::Crosvm)].concat();
        let vm = Vm::start_words(Vmm::Crosvm, Way::Slice, &words);
        vm.until_isolated("boot", 2);
        vm.until_alive("boot", 0);
        vm.pause_and_resume();
        let answer = vm.tell_crosvm(&["stop"]);
        assert!(answer.is_success(), "{answer:?}");
        vm.until_given_back("stop");
    });
}
