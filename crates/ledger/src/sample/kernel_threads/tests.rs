use std::fs;
use std::path::Path;

use super::*;
use crate::sample::files::RootedFiles;

const BOUND: u64 = 0x0420_0040;
const KERNEL: u64 = 0x0020_0040;

fn thread(root: &Path, id: i32, name: &str, flags: u64, cpus: &str) {
    let stat = format!("{id} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n");
    let folder = root.join(format!("proc/{id}/task/{id}"));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("stat"), stat).expect("stat");
    fs::write(
        root.join(format!("proc/{id}/status")),
        format!("Name:\tx\nCpus_allowed_list:\t{cpus}\n"),
    )
    .expect("status");
}

fn list(root: &Path, ids: &str) {
    fs::create_dir_all(root.join("sys/fs/cgroup")).expect("a folder");
    fs::write(root.join("sys/fs/cgroup/cgroup.procs"), ids).expect("a list");
}

fn names(threads: &mut KernelThreads, root: &Path) -> Vec<(String, u32)> {
    threads
        .refresh(&RootedFiles::new(&root.display().to_string()), &mut Vec::new())
        .expect("threads");
    let cpus = CpuSet::below(4);
    let found = threads.bound_to(&cpus).map(|bound| (bound.name.clone(), bound.cpu));
    found.collect()
}

#[test]
fn bound_are_threads_of_the_kernel_that_nobody_can_move_to_another_cpu() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    thread(root, 11, "ksoftirqd/2", BOUND, "2");
    thread(root, 12, "kworker/1:0H-kblockd", BOUND, "1");
    thread(root, 13, "kworker/3:0-events", BOUND, "0-1");
    thread(root, 14, "kworker/u8:2-flush", BOUND, "1");
    thread(root, 15, "kworker/R-rcu_gp", BOUND, "1");
    thread(root, 16, "irq/24-nvme0q1", BOUND, "1");
    thread(root, 17, "napi/eth0-1", KERNEL, "1");
    thread(root, 18, "rcu_exp_gp", BOUND, "0-1");
    thread(root, 19, "kworker/1:5-x", 0x0040_0000, "1");
    list(root, "0\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n");
    let expected =
        [("ksoftirqd/2", 2), ("kworker/1:0H", 1), ("kworker/3:0", 3)].map(|(name, cpu)| (name.to_owned(), cpu));
    assert_eq!(names(&mut KernelThreads::default(), root), expected);
}

#[test]
fn what_was_looked_at_is_not_looked_at_again_and_what_was_just_made_is() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    let mut threads = KernelThreads::default();
    list(root, "1\n5\n6\n");
    thread(root, 1, "systemd", 0x0040_0100, "0-3");
    thread(root, 5, "napi/eth0-1", KERNEL, "0-3");
    // It has neither its name nor its CPU yet.
    thread(root, 6, "kthreadd", KERNEL, "0-3");
    for _ in 0..3 {
        assert_eq!(names(&mut threads, root), []);
    }
    for id in [1, 5, 6] {
        thread(root, id, "ksoftirqd/3", BOUND, "3");
    }
    assert_eq!(names(&mut threads, root), [("ksoftirqd/3".to_owned(), 3)], "only 6");
    // A number that was not in the list meanwhile is new.
    list(root, "5\n6\n");
    assert_eq!(names(&mut threads, root).len(), 1);
    list(root, "1\n5\n6\n");
    assert_eq!(names(&mut threads, root).len(), 2);
    list(root, "");
    assert_eq!(names(&mut threads, root), []);
}
