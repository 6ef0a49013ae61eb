//! `vm.yaml` on arm64, with the beginning of `args` that `docs/first-vm.md` has for it: UEFI firmware boots a Linux from its disk.

use std::slice;
use std::time::Duration;

use super::{apply_text, assert_answers, assert_end, assert_runs, assert_special, disk, make_images, said, text};
use crate::support::*;

/// The beginning of what is replaced.
const ARGS: &str = "    args: [";

/// For the firmware, the boot loader and the kernel of a guest on an emulated node.
const UP: Duration = Duration::from_secs(300);

/// The manifest with the page's words.
fn for_arm64() -> String {
    let page = read(beside("first-vm.md"));
    let (_, section) = page.split_once("\n### On arm64\n").expect("the page's section");
    let (_, block) = section.split_once("```yaml\n").expect("its example");
    let (args, _) = block.split_once("\n```").expect("its end");
    assert!(args.starts_with(ARGS), "{args}");
    let vm = text("vm");
    let line = vm.lines().find(|line| line.starts_with(ARGS)).expect("args");
    // The number of CPUs, and what stands behind it, stay as they are.
    let rest = |text: &str| text.split_once("-smp").map(|(_, rest)| rest.to_owned());
    assert_eq!(rest(args), rest(line));
    vm.replace(line, args)
}

#[test]
fn vm_yaml_with_the_words_of_the_page_boots_its_disk_and_ends_by_its_power_button() {
    needs_kvm();
    on_node_undoing(device_plugin::stop, || {
        device_plugin::start();
        make_images(&disk::linux());
        let pod = apply_text("vm", &for_arm64()).running();
        let seen = || format!("; its console and its runner said:\n{}", pod.logs());
        wait_within(UP, "the guest is up", seen, || {
            said(&pod).contains("guest: up with 2 CPUs")
        });
        assert_runs(&pod);
        assert_special(&pod);
        pod.threads().one(QEMU_NAME);
        assert_answers(&pod);
        run("steliactl verify --now");
        assert_end(slice::from_ref(&pod));
    });
}
