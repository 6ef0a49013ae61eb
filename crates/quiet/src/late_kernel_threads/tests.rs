use std::cell::{Cell, RefCell};
use std::io;

use super::*;
use crate::files::Store;
use crate::order::OrderedVm;

const EINVAL: i32 = 22;

#[derive(Clone)]
struct Task {
    name: &'static str,
    flags: u64,
    start: u64,
    mask: CpuSet,
}

/// Kernel threads, and the store. A cpuset takes `taken` from every mask that is set.
#[derive(Default)]
struct Kernel {
    tasks: RefCell<BTreeMap<i32, Task>>,
    taken: RefCell<CpuSet>,
    kept: RefCell<Option<String>>,
    reads: Cell<usize>,
    sets: Cell<usize>,
    /// The store's contents when a mask was last set.
    kept_at_set: RefCell<Option<String>>,
    /// Its files cannot be read now.
    unread: Cell<i32>,
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

impl Kernel {
    fn born(&self, id: i32, name: &'static str, flags: u64, mask: &str) {
        let (flags, start, mask) = (flags | 0x0020_0000, 1000 + u64::from(id.unsigned_abs()), cpus(mask));
        let task = Task {
            name,
            flags,
            start,
            mask,
        };
        self.tasks.borrow_mut().insert(id, task);
    }

    fn mask(&self, id: i32) -> String {
        self.tasks.borrow()[&id].mask.to_string()
    }

    fn carry_out(&self, vms: &[&str], memory: &mut ThreadHistory) -> Report {
        let vms = vms.iter().enumerate().map(|(index, list)| {
            let cpus = cpus(list);
            (
                format!("pod-{index}"),
                OrderedVm {
                    cpus,
                    ..OrderedVm::default()
                },
            )
        });
        let order = Order {
            shared: cpus("0-1"),
            vms: vms.collect(),
            ..Order::default()
        };
        let mut report = Report::default();
        let system = System {
            files: self,
            store: self,
        };
        carry_out(system, &order, memory, &mut report);
        report
    }
}

impl Files for Kernel {
    fn read(&self, path: &str) -> io::Result<String> {
        self.reads.set(self.reads.get() + 1);
        let tasks = self.tasks.borrow();
        if path == CHILDREN {
            return Ok(tasks.keys().map(|id| format!("{id} ")).collect());
        }
        let parts: Vec<&str> = path.split('/').collect();
        let id: i32 = parts[2].parse().unwrap();
        let task = tasks.get(&id).ok_or(io::ErrorKind::NotFound)?;
        if id == self.unread.get() {
            return Err(io::Error::from_raw_os_error(EINVAL));
        }
        Ok(match parts[3] {
            "stat" => {
                let fields = (10..22).map(|_| "0 ").collect::<String>();
                format!(
                    "{id} ({}) I 2 0 0 0 -1 {} {fields}{} 0\n",
                    task.name, task.flags, task.start
                )
            }
            "status" => format!("Name:\t{}\nCpus_allowed_list:\t{}\n", task.name, task.mask),
            other => panic!("{other}"),
        })
    }

    fn write(&self, path: &str, _: &str) -> io::Result<()> {
        panic!("{path}")
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        panic!("{path}")
    }

    fn link(&self, path: &str) -> io::Result<String> {
        panic!("{path}")
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        panic!("{path}")
    }

    fn set_affinity(&self, thread: i32, cpus: &CpuSet) -> io::Result<()> {
        self.sets.set(self.sets.get() + 1);
        self.kept_at_set.replace(self.kept.borrow().clone());
        let mut tasks = self.tasks.borrow_mut();
        let task = tasks.get_mut(&thread).ok_or(io::Error::from_raw_os_error(3))?;
        let mask = cpus.difference(&self.taken.borrow());
        if task.flags & 0x0400_0000 != 0 || mask.is_empty() || task.name == "stubborn" {
            return Err(io::Error::from_raw_os_error(EINVAL));
        }
        task.mask = mask;
        Ok(())
    }
}

impl Store for Kernel {
    fn load(&self, _: &str) -> io::Result<Option<String>> {
        Ok(self.kept.borrow().clone())
    }

    fn save(&self, name: &str, value: &str) -> io::Result<()> {
        assert_eq!(name, "threads.json");
        self.kept.replace(Some(value.to_owned()));
        Ok(())
    }
}

#[test]
fn a_late_thread_leaves_the_vms_cpus_and_gets_them_back_when_the_vm_ends() {
    let (kernel, mut memory) = (Kernel::default(), ThreadHistory::default());
    kernel.born(50, "napi/eth0-8193", 0, "0-7");
    kernel.born(51, "kcompactd1", 0, "2-3");
    kernel.born(52, "kswapd0", 0, "0-1,4-7");
    let report = kernel.carry_out(&["2-3"], &mut memory);
    assert_eq!((report.threads_moved, report.threads_remaining.len()), (2, 0));
    assert_eq!(kernel.mask(50), "0-1,4-7");
    assert_eq!(kernel.mask(51), "0-1", "nothing is left of its mask: the shared CPUs");
    assert_eq!(kernel.carry_out(&["2-3"], &mut memory).threads_moved, 2);
    assert_eq!(kernel.sets.get(), 2, "the same order again sets nothing");
    // Another process carries out the end.
    kernel.carry_out(&[], &mut ThreadHistory::default());
    assert_eq!((kernel.mask(50), kernel.mask(51)), ("0-7".into(), "2-3".into()));
    assert_eq!(kernel.kept.borrow().as_deref(), Some("{}"));
}

#[test]
fn of_two_vms_the_one_that_ends_gives_back_its_cpus_only() {
    let (kernel, mut memory) = (Kernel::default(), ThreadHistory::default());
    kernel.born(50, "napi/eth0-8193", 0, "0-7");
    kernel.carry_out(&["2-3", "4-5"], &mut memory);
    assert_eq!(kernel.mask(50), "0-1,6-7");
    kernel.carry_out(&["4-5"], &mut memory);
    assert_eq!(kernel.mask(50), "0-3,6-7");
    assert!(kernel.kept.borrow().as_deref().unwrap().contains("\"0-7\""));
}

#[test]
fn the_kernels_own_threads_are_left_alone_and_those_that_refuse_are_listed() {
    let (kernel, mut memory) = (Kernel::default(), ThreadHistory::default());
    kernel.born(20, "ksoftirqd/2", 0x0400_0000, "2");
    kernel.born(21, "irq/77-nvme0q3", 0, "2-3");
    kernel.born(22, "kworker/u32:1", 0x0400_0000, "0-7");
    kernel.born(23, "kworker/R-xfs", 0x0400_0000, "0-7");
    kernel.born(24, "stubborn", 0, "0-7");
    kernel.born(25, "rcuog/2", 0, "2");
    let report = kernel.carry_out(&["2-3"], &mut memory);
    let told: Vec<_> = report
        .threads_remaining
        .iter()
        .map(|thread| (thread.id, thread.text.as_str()))
        .collect();
    assert_eq!(told[0], (23, "the kernel lets nobody set its CPUs (PF_NO_SETAFFINITY)"));
    assert_eq!(told[1].0, 24);
    assert!(
        told[1]
            .1
            .contains("set the CPUs 0-1,4-7 of thread 24: Invalid argument"),
        "{told:?}"
    );
    assert_eq!((told.len(), report.threads_moved), (2, 0));
    assert_eq!(report.threads_remaining[0].cpus, cpus("2-3"));
    assert_eq!(
        kernel.kept.borrow().as_deref(),
        Some("{}"),
        "what could not be moved needs no undoing"
    );
    // Those that are never moved are not read again: the list, the masks of the others, and what is to be moved.
    kernel.reads.set(0);
    kernel.carry_out(&["2-3"], &mut memory);
    assert_eq!(kernel.reads.get(), 1 + 3 + 1);
}

#[test]
fn a_mask_that_another_wrote_is_its_own() {
    let (kernel, mut memory) = (Kernel::default(), ThreadHistory::default());
    kernel.born(50, "napi/eth0-8193", 0, "0-7");
    kernel.carry_out(&["2-3"], &mut memory);
    kernel.tasks.borrow_mut().get_mut(&50).unwrap().mask = cpus("0");
    kernel.carry_out(&[], &mut memory);
    assert_eq!(kernel.mask(50), "0");
    assert_eq!(kernel.kept.borrow().as_deref(), Some("{}"));
}

#[test]
fn a_number_that_is_another_threads_by_now_is_not_given_the_former_ones_mask() {
    let (kernel, mut memory) = (Kernel::default(), ThreadHistory::default());
    kernel.born(50, "napi/eth0-8193", 0, "0-7");
    kernel.carry_out(&["2-3"], &mut memory);
    kernel.tasks.borrow_mut().get_mut(&50).unwrap().start += 1;
    kernel.carry_out(&[], &mut memory);
    assert_eq!(kernel.mask(50), "0-1,4-7");
}

#[test]
fn the_record_is_written_before_the_mask_and_has_what_the_kernel_made_of_it() {
    let (kernel, mut memory) = (Kernel::default(), ThreadHistory::default());
    kernel.born(50, "napi/eth0-8193", 0, "0-7");
    // A partition that is just ending, and no VM's any more.
    kernel.taken.replace(cpus("6-7"));
    kernel.carry_out(&["2-3"], &mut memory);
    assert!(
        kernel
            .kept_at_set
            .borrow()
            .as_deref()
            .unwrap()
            .contains("\"base\":\"0-7\"")
    );
    assert_eq!(kernel.mask(50), "0-1,4-5");
    kernel.taken.replace(CpuSet::new());
    kernel.carry_out(&[], &mut memory);
    assert_eq!(kernel.mask(50), "0-7");
}

#[test]
fn without_vms_and_without_a_record_nothing_is_read() {
    let kernel = Kernel::default();
    assert_eq!(kernel.carry_out(&[], &mut ThreadHistory::default()), Report::default());
    assert_eq!(kernel.reads.get(), 0);
}

#[test]
fn a_record_that_cannot_be_read_changes_nothing_and_is_told() {
    let kernel = Kernel::default();
    kernel.born(50, "napi/eth0-8193", 0, "0-7");
    kernel.kept.replace(Some("[1".into()));
    let report = kernel.carry_out(&["2-3"], &mut ThreadHistory::default());
    assert!(
        report.problems[0].text.contains("read the record threads.json"),
        "{report:?}"
    );
    assert_eq!((kernel.sets.get(), kernel.mask(50)), (0, "0-7".into()));
}

#[test]
fn one_that_cannot_be_read_now_is_given_back_its_cpus_when_it_can_be() {
    let kernel = Kernel::default();
    kernel.born(70, "napi/eth0-1", 0, "0-3");
    kernel.carry_out(&["2-3"], &mut ThreadHistory::default());
    assert_eq!(kernel.mask(70), "0-1");
    kernel.unread.set(70);
    // The program begins anew: it knows the thread by its record alone.
    for vms in [&["2-3"][..], &[]] {
        kernel.carry_out(vms, &mut ThreadHistory::default());
        assert_eq!(kernel.mask(70), "0-1");
    }
    kernel.unread.set(0);
    kernel.carry_out(&[], &mut ThreadHistory::default());
    assert_eq!(kernel.mask(70), "0-3");
}
