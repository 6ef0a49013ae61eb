//! A VMM's processes as `testing/vmm/recordings/` has them.

use std::fs;
use std::path::Path;

use test_vmm::recording::Process;

use super::{children, threads_of};

/// The VMM's own, and then those that it has started. None: one of them ended meanwhile.
pub fn processes(vmm: u32) -> Option<Vec<Process>> {
    let mut others = children(vmm);
    let mut at = 0;
    while let Some(other) = others.get(at).copied() {
        others.extend(children(other));
        at += 1;
    }
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(vmm)?;
    let mut others = others
        .into_iter()
        .map(|pid| process(pid, namespace(pid)? != own))
        .collect::<Option<Vec<_>>>()?;
    others.sort_unstable();
    others.insert(0, process(vmm, false)?);
    Some(others)
}

fn process(pid: u32, has_namespaces: bool) -> Option<Process> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let argv0 = String::from_utf8_lossy(command.split(|byte| *byte == 0).next()?).into_owned();
    let (main, others): (Vec<_>, Vec<_>) = threads_of(pid).into_iter().partition(|thread| thread.tid == pid);
    let mut threads: Vec<String> = others.into_iter().map(|thread| thread.name).collect();
    threads.sort_unstable();
    Some(Process {
        argv0: Path::new(&argv0).file_name()?.to_str()?.to_owned(),
        comm: main.into_iter().next()?.name,
        has_namespaces,
        threads,
    })
}
