//! crosvm, adopted.

use super::adopted::{lives_and_is_restored, rule};
use super::{Vm, Vmm, Way, guest};
use crate::adopted::adopting;

#[test]
fn crosvm_in_the_slice() {
    lives_and_is_restored(Vmm::Crosvm, Way::Slice, &rule(Vmm::Crosvm, ""));
}

#[test]
fn crosvm_as_container() {
    lives_and_is_restored(
        Vmm::Crosvm,
        Way::Container,
        &rule(Vmm::Crosvm, "isolation = \"container\"\n"),
    );
}

#[test]
fn crosvm_without_its_sandbox_in_the_slice() {
    adopting(&rule(Vmm::Crosvm, ""), || {
        let words = [vec!["--disable-sandbox".to_owned()], guest::words(Vmm::Crosvm)].concat();
        let vm = Vm::start_words(Vmm::Crosvm, Way::Slice, &words);
        vm.until_isolated("boot", 2);
        vm.note("boot", &format!("its threads {:?}", vm.names()));
        vm.until_alive("boot", 0);
        vm.is_paused_and_resumed();
        vm.must_tell_crosvm(&["stop"]);
        vm.until_given_back("stop");
    });
}
