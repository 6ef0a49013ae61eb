//! sched_setaffinity(2) for machines of any size. The mask of every library at hand ends at CPU 1023; the kernel takes one of
//! any length.

use std::io;

use nix::libc::{cpu_set_t, pid_t, sched_setaffinity};
use stelia_cpus::CpuSet;

/// Let a thread run on these CPUs, as far as its cpuset has them.
///
/// # Errors
/// It ended (ESRCH), or its cpuset has none of them (EINVAL).
#[allow(unsafe_code)]
pub fn set(tid: pid_t, cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the kernel reads `size_of_val(words)` bytes at `words`, which this function borrows, and writes nothing. It takes
    // them for `unsigned long`s, which u64 is on the targets this program is for.
    let failed = unsafe { sched_setaffinity(tid, size_of_val(words), words.as_ptr().cast::<cpu_set_t>()) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the kernel's CPU masks are arrays of unsigned long, which is not u64 here");
