//! sched_setaffinity(2) and sched_getaffinity(2) for machines of any size. The mask of every library at hand ends at CPU 1023; the kernel takes one of
//! any length.

use std::io;

use nix::libc::{cpu_set_t, pid_t, sched_getaffinity, sched_setaffinity};
use stelia_cpus::{CpuSet, MAX_CPUS};

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

/// Where a thread may run. One call, where `/proc` takes a file for it.
///
/// # Errors
/// It ended (ESRCH).
#[allow(unsafe_code)]
pub fn get(tid: pid_t) -> io::Result<CpuSet> {
    let mut words = [0u64; MAX_CPUS as usize / 64];
    // SAFETY: the kernel writes at most `size_of_val(&words)` bytes at `words`, which this function owns, and libc clears the rest.
    let failed = unsafe { sched_getaffinity(tid, size_of_val(&words), words.as_mut_ptr().cast::<cpu_set_t>()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(CpuSet::of_words(words.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_read() {
        let had = get(0).unwrap();
        let first = had.iter().next().unwrap();
        set(0, &CpuSet::from_iter([first])).unwrap();
        assert_eq!(get(0).unwrap(), CpuSet::from_iter([first]));
        set(0, &had).unwrap();
        assert_eq!(get(0).unwrap(), had);
    }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the kernel's CPU masks are arrays of unsigned long, which is not u64 here");
