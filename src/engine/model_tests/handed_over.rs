//! A process that ends while the threads that it hands over are read.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use stelia_kernel::proc::{ProcError, TaskId, Thread};

use super::*;

/// The model's processes; one of them ends right after its threads were read, and another one gets its number.
struct Ending {
    model: Model,
    procs: Arc<dyn Procs>,
    process: i32,
    creator: i32,
}

impl Procs for Ending {
    fn threads(&self, pid: i32) -> Result<Vec<Thread>, ProcError> {
        let threads = self.procs.threads(pid)?;
        if pid == self.process {
            self.model.end(pid).unwrap();
            self.model.next_id(pid);
            self.model.spawn(self.creator, "another").unwrap();
        }
        Ok(threads)
    }

    fn identify(&self, id: i32) -> Result<TaskId, ProcError> {
        self.procs.identify(id)
    }

    fn cgroup(&self, id: i32) -> Result<CgroupPath, ProcError> {
        self.procs.cgroup(id)
    }

    fn process(&self, tid: i32) -> Result<i32, ProcError> {
        self.procs.process(tid)
    }

    fn numbers(&self, id: i32) -> Result<Vec<i32>, ProcError> {
        self.procs.numbers(id)
    }

    fn thread_ids(&self, pid: i32) -> Result<Vec<i32>, ProcError> {
        self.procs.thread_ids(pid)
    }

    fn name(&self, id: i32) -> String {
        self.procs.name(id)
    }

    fn command(&self, pid: i32, most: usize) -> Result<Vec<String>, ProcError> {
        self.procs.command(pid, most)
    }

    fn affinity(&self, tid: i32) -> Result<CpuSet, ProcError> {
        self.procs.affinity(tid)
    }

    fn has_run_guest(&self, tid: i32) -> Result<bool, ProcError> {
        self.procs.has_run_guest(tid)
    }

    fn set_affinity(&self, tid: i32, cpu: Option<u32>) -> Result<(), ProcError> {
        self.procs.set_affinity(tid, cpu)
    }

    fn allow_cpus(&self, tid: i32, cpus: &CpuSet) -> Result<(), ProcError> {
        self.procs.allow_cpus(tid, cpus)
    }

    fn pid_of_pidfd(&self, pidfd: BorrowedFd<'_>) -> Result<i32, ProcError> {
        self.procs.pid_of_pidfd(pidfd)
    }

    fn open_pidfd(&self, pid: i32) -> Result<OwnedFd, ProcError> {
        self.procs.open_pidfd(pid)
    }
}

#[tokio::test]
async fn threads_of_a_process_that_ended_while_they_were_read_are_not_attached() {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    node.register(&pod).await.unwrap();
    let qemu = node.model.add_qemu(pod.init, 2).unwrap();
    node.stop().await;
    let mut system = node.model.system();
    system.procs = Arc::new(Ending {
        model: node.model.clone(),
        procs: system.procs.clone(),
        process: qemu.pid,
        creator: pod.init,
    });
    let (engine, handle) = Engine::new(system, node.settings.clone()).unwrap();
    node.cancel = CancellationToken::new();
    node.running = tokio::spawn(engine.run(node.cancel.clone(), Duration::from_secs(3600), || {}));
    node.handle = handle;
    node.reconcile().await;
    let request = node.attach_request(&pod, &qemu);
    assert_eq!(kind(node.handle.attach(request).await), ErrorKind::ForeignProcess);
    assert_eq!(node.phase(&pod), Some("waiting"));
}
