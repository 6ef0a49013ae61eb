//! The CPUs that the kernel's unbound workers (`kworker/u…`) may use: `/sys/devices/virtual/workqueue` (kernel:
//! `Documentation/core-api/workqueue.rst`).

use std::path::{Path, PathBuf};
use std::{fs, io};

use stelia_cpus::{CpuSet, files};

use crate::cgroup::CgroupError;

/// The two masks from which the kernel computes where its unbound workers may run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masks {
    /// What was last written (`cpumask_requested`; before Linux 6.9 that is `cpumask`).
    pub requested: CpuSet,
    /// What the kernel takes away from it for isolated partitions and `isolcpus=` (`cpumask_isolated`).
    pub isolated: CpuSet,
}

/// Where the workers may run now, below `sys` (`/sys`); `None` where the kernel has no such file.
pub fn in_force(sys: &Path) -> Result<Option<CpuSet>, CgroupError> {
    mask(&file(sys, "cpumask"))
}

/// What was requested, and what the kernel subtracts from it.
pub fn masks(sys: &Path) -> Result<Option<Masks>, CgroupError> {
    let requested = match mask(&file(sys, "cpumask_requested"))? {
        Some(requested) => Some(requested),
        None => in_force(sys)?,
    };
    let Some(requested) = requested else { return Ok(None) };
    Ok(Some(Masks {
        requested,
        isolated: isolated(sys)?,
    }))
}

/// What the kernel subtracts by itself; nothing before Linux 6.9.
pub fn isolated(sys: &Path) -> Result<CpuSet, CgroupError> {
    Ok(mask(&file(sys, "cpumask_isolated"))?.unwrap_or_default())
}

/// Let the workers run on these CPUs. The kernel accepts isolated ones too, if they are requested, and refuses an empty set.
pub fn allow(sys: &Path, cpus: &CpuSet) -> Result<(), CgroupError> {
    let path = file(sys, "cpumask");
    let text = cpus.to_mask();
    fs::write(&path, &text).map_err(|cause| CgroupError {
        operation: format!("write {text:?} to {}", path.display()),
        cause,
    })
}

fn file(sys: &Path, name: &str) -> PathBuf {
    sys.join("devices/virtual/workqueue").join(name)
}

fn mask(path: &Path) -> Result<Option<CpuSet>, CgroupError> {
    let failed = |cause| CgroupError {
        operation: format!("read {}", path.display()),
        cause,
    };
    let bytes = match files::read(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(failed)?,
    };
    let text = String::from_utf8_lossy(&bytes);
    match CpuSet::from_mask(text.trim()) {
        Some(cpus) => Ok(Some(cpus)),
        None => Err(failed(io::Error::other(format!("{:?} is not a CPU mask", text.trim())))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_before_6_9_has_one_file_and_one_without_any_says_nothing() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(masks(sys.path()).unwrap(), None);
        let directory = sys.path().join("devices/virtual/workqueue");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cpumask"), "fb\n").unwrap();
        let old = masks(sys.path()).unwrap().unwrap();
        assert_eq!(
            (old.requested.to_string(), old.isolated.to_string()),
            ("0-1,3-7".into(), String::new())
        );
        fs::write(directory.join("cpumask_requested"), "ff\n").unwrap();
        fs::write(directory.join("cpumask_isolated"), "00000000,00000004\n").unwrap();
        let new = masks(sys.path()).unwrap().unwrap();
        assert_eq!(
            (new.requested.to_string(), new.isolated.to_string()),
            ("0-7".into(), "2".into())
        );
        allow(sys.path(), &new.isolated).unwrap();
        assert_eq!(in_force(sys.path()).unwrap(), Some(new.isolated));
        fs::write(directory.join("cpumask"), "nobody\n").unwrap();
        let error = in_force(sys.path()).unwrap_err().to_string();
        assert!(error.ends_with("\"nobody\" is not a CPU mask"), "{error}");
    }
}
