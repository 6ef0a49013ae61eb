use rustix::io::Errno;

use super::*;
use crate::testing::{Call, FakeKernel, set as cpus, vm};

const RECORD: &str = "threads.json";
/// What a cpuset takes from every mask that is set.
const TAKEN: &str = "/taken";
/// The record when a mask was last set.
const KEPT_AT_SET: &str = "/kept";

/// Kernel threads.
struct Kernel {
    fake: FakeKernel,
    /// What the running program knows.
    memory: ThreadHistory,
}

impl Kernel {
    fn new() -> Self {
        let fake = FakeKernel::default();
        fake.tree().put(CHILDREN, "");
        fake.tree().put(TAKEN, "");
        fake.tree().rule("/proc/", |tree, path, value| {
            let kept = tree.saved[RECORD].clone();
            tree.put(KEPT_AT_SET, &kept);
            let mask = cpus(value).difference(&cpus(tree.get(TAKEN).unwrap()));
            let stat = tree.get(&path.replace("affinity", "stat")).unwrap();
            if mask.is_empty() || stat.contains(" 69206016 ") || stat.contains("stubborn") {
                return Err(Errno::INVAL);
            }
            tree.put(
                &path.replace("affinity", "status"),
                &format!("Cpus_allowed_list:\t{mask}"),
            );
            Ok(())
        });
        Self {
            fake,
            memory: ThreadHistory::default(),
        }
    }

    /// With a thread of the network's that may run on these CPUs.
    fn with_thread_50(mask: &str) -> Self {
        let kernel = Self::new();
        kernel.born(50, "napi/eth0-8193", 0, mask);
        kernel
    }

    fn born(&self, id: i32, name: &str, flags: u64, mask: &str) {
        self.stat(id, name, flags, 1000);
        let mut tree = self.fake.tree();
        let ids = format!("{}{id} ", tree.get(CHILDREN).unwrap());
        tree.put(CHILDREN, &ids);
        tree.put(&format!("/proc/{id}/affinity"), "");
        tree.put(&format!("/proc/{id}/status"), &format!("Cpus_allowed_list:\t{mask}"));
    }

    fn stat(&self, id: i32, name: &str, flags: u64, start: u64) {
        let fields = "0 ".repeat(12);
        let text = format!("{id} ({name}) I 2 0 0 0 -1 {} {fields}{start} 0", flags | 0x0020_0000);
        self.fake.tree().put(&format!("/proc/{id}/stat"), &text);
    }

    fn mask(&self, id: i32) -> String {
        let tree = self.fake.tree();
        let status = tree.get(&format!("/proc/{id}/status")).unwrap();
        status.trim_start_matches("Cpus_allowed_list:\t").to_owned()
    }

    fn kept(&self) -> Option<String> {
        self.fake.tree().saved.get(RECORD).cloned()
    }

    fn sets(&self) -> usize {
        self.fake.tree().writes.len()
    }

    fn carry_out(&mut self, vms: &[&str]) -> Report {
        let order = Order {
            shared: cpus("0-1"),
            vms: vms.iter().map(|list| (format!("pod-{list}"), vm(list))).collect(),
            ..Order::default()
        };
        let mut report = Report::default();
        carry_out(self.fake.system(), &order, &mut self.memory, &mut report);
        report
    }

    /// As another process, which knows only the record.
    fn carry_out_anew(&mut self, vms: &[&str]) -> Report {
        self.memory = ThreadHistory::default();
        self.carry_out(vms)
    }
}

#[test]
fn a_late_thread_leaves_the_vms_cpus_and_gets_them_back_when_the_vm_ends() {
    let mut kernel = Kernel::with_thread_50("0-7");
    kernel.born(51, "kcompactd1", 0, "2-3");
    kernel.born(52, "kswapd0", 0, "0-1,4-7");
    let report = kernel.carry_out(&["2-3"]);
    assert_eq!((report.threads_moved, report.threads_remaining.len()), (2, 0));
    assert_eq!(kernel.mask(50), "0-1,4-7");
    assert_eq!(kernel.mask(51), "0-1", "nothing is left of its mask: the shared CPUs");
    assert_eq!(kernel.carry_out(&["2-3"]).threads_moved, 2);
    assert_eq!(kernel.sets(), 2, "the same order again sets nothing");
    // Another process carries out the end.
    kernel.carry_out_anew(&[]);
    assert_eq!((kernel.mask(50), kernel.mask(51)), ("0-7".into(), "2-3".into()));
    assert_eq!(kernel.kept().as_deref(), Some("{}"));
}

#[test]
fn of_two_vms_the_one_that_ends_gives_back_its_cpus_only() {
    let mut kernel = Kernel::with_thread_50("0-7");
    kernel.carry_out(&["2-3", "4-5"]);
    assert_eq!(kernel.mask(50), "0-1,6-7");
    kernel.carry_out(&["4-5"]);
    assert_eq!(kernel.mask(50), "0-3,6-7");
    assert!(kernel.kept().as_deref().unwrap().contains("\"0-7\""));
}

#[test]
fn the_kernels_own_threads_are_left_alone_and_those_that_refuse_are_listed() {
    let mut kernel = Kernel::new();
    kernel.born(20, "ksoftirqd/2", 0x0400_0000, "2");
    kernel.born(21, "irq/77-nvme0q3", 0, "2-3");
    kernel.born(22, "kworker/u32:1", 0x0400_0000, "0-7");
    kernel.born(23, "kworker/R-xfs", 0x0400_0000, "0-7");
    kernel.born(24, "stubborn", 0, "0-7");
    kernel.born(25, "rcuog/2", 0, "2");
    let report = kernel.carry_out(&["2-3"]);
    let [bound, refuses] = &report.threads_remaining[..] else {
        panic!("{report:?}")
    };
    assert_eq!((bound.id, refuses.id, report.threads_moved), (23, 24, 0));
    assert!(bound.text.contains("PF_NO_SETAFFINITY"), "{report:?}");
    let text = "set the CPUs 0-1,4-7 of thread 24: Invalid argument";
    assert!(refuses.text.contains(text), "{report:?}");
    assert_eq!(report.threads_remaining[0].cpus, cpus("2-3"));
    assert_eq!(
        kernel.kept().as_deref(),
        Some("{}"),
        "what could not be moved needs no undoing"
    );
    // Those that are never moved are not read again: the list, the masks of the others, and what is to be moved.
    let before = kernel.fake.tree().reads;
    kernel.carry_out(&["2-3"]);
    assert_eq!(kernel.fake.tree().reads - before, 1 + 3 + 1);
}

#[test]
fn a_mask_that_another_wrote_is_its_own() {
    let mut kernel = Kernel::with_thread_50("0-7");
    kernel.carry_out(&["2-3"]);
    kernel.fake.set_affinity(50, &cpus("0")).unwrap();
    kernel.carry_out(&[]);
    assert_eq!(kernel.mask(50), "0");
    assert_eq!(kernel.kept().as_deref(), Some("{}"));
}

#[test]
fn a_number_that_is_another_threads_by_now_is_not_given_the_former_ones_mask() {
    let mut kernel = Kernel::with_thread_50("0-7");
    kernel.carry_out(&["2-3"]);
    kernel.stat(50, "napi/eth0-8193", 0, 1001);
    kernel.carry_out(&[]);
    assert_eq!(kernel.mask(50), "0-1,4-7");
}

#[test]
fn the_record_is_written_before_the_mask_and_has_what_the_kernel_made_of_it() {
    let mut kernel = Kernel::with_thread_50("0-7");
    // A partition that is just ending, and no VM's any more.
    kernel.fake.tree().put(TAKEN, "6-7");
    kernel.carry_out(&["2-3"]);
    let kept = kernel.fake.tree().get(KEPT_AT_SET).unwrap().to_owned();
    assert!(kept.contains("\"base\":\"0-7\""), "{kept}");
    assert_eq!(kernel.mask(50), "0-1,4-5");
    kernel.fake.tree().put(TAKEN, "");
    kernel.carry_out(&[]);
    assert_eq!(kernel.mask(50), "0-7");
}

#[test]
fn without_vms_and_without_a_record_nothing_is_read() {
    let mut kernel = Kernel::new();
    assert_eq!(kernel.carry_out(&[]), Report::default());
    assert_eq!(kernel.fake.tree().reads, 0);
}

#[test]
fn a_record_that_cannot_be_read_changes_nothing_and_is_told() {
    let mut kernel = Kernel::with_thread_50("0-7");
    kernel.fake.tree().saved.insert(RECORD.into(), "[1".into());
    let report = kernel.carry_out(&["2-3"]);
    assert!(report.problems[0].text.contains(RECORD), "{report:?}");
    assert_eq!((kernel.sets(), kernel.mask(50)), (0, "0-7".into()));
}

#[test]
fn one_that_cannot_be_read_now_is_given_back_its_cpus_when_it_can_be() {
    let mut kernel = Kernel::with_thread_50("0-3");
    kernel.carry_out(&["2-3"]);
    assert_eq!(kernel.mask(50), "0-1");
    for file in ["stat", "status"] {
        let path = format!("/proc/50/{file}");
        kernel.fake.tree().fail(Call::Read, &path, Errno::INVAL, None);
    }
    // The program begins anew: it knows the thread by its record alone.
    for vms in [&["2-3"][..], &[]] {
        kernel.carry_out_anew(vms);
        assert_eq!(kernel.mask(50), "0-1");
    }
    kernel.fake.tree().heal();
    kernel.carry_out_anew(&[]);
    assert_eq!(kernel.mask(50), "0-3");
}
