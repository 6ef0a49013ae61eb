//! The kernel's cgroup v2 file system behind [`Cgroups`].

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use stelia_cpus::files;

use super::names::{path_of, text_of};
use super::{CgroupError, CgroupPath, Cgroups, File};

const PREFIX: &str = "user.stelia.";

/// cgroup v2 as mounted at a directory (`/sys/fs/cgroup`).
#[derive(Debug, Clone)]
pub struct KernelCgroups {
    root: PathBuf,
}

impl KernelCgroups {
    /// Work on the hierarchy mounted at `root`. Does no I/O.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory of a cgroup.
    pub fn directory(&self, cgroup: &CgroupPath) -> PathBuf {
        self.root.join(path_of(cgroup.as_str().trim_start_matches('/')))
    }

    fn file(&self, cgroup: &CgroupPath, file: File) -> PathBuf {
        self.directory(cgroup).join(file.name())
    }
}

fn failed(operation: String) -> impl FnOnce(io::Error) -> CgroupError {
    move |cause| CgroupError { operation, cause }
}

impl Cgroups for KernelCgroups {
    fn exists(&self, cgroup: &CgroupPath) -> bool {
        self.directory(cgroup).is_dir()
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<String>, CgroupError> {
        self.some_children(cgroup, usize::MAX)
    }

    fn some_children(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<String>, CgroupError> {
        let directory = self.directory(cgroup);
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                if names.len() >= most {
                    break;
                }
                if entry.file_type()?.is_dir() {
                    names.push(text_of(&entry.file_name()));
                }
            }
            names.sort();
            Ok(names)
        };
        list().map_err(failed(format!("list {}", directory.display())))
    }

    fn read(&self, cgroup: &CgroupPath, file: File) -> Result<String, CgroupError> {
        let path = self.file(cgroup, file);
        let mut bytes = files::read(&path).map_err(failed(format!("read {}", path.display())))?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        // The kernel prints ASCII.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, cgroup: &CgroupPath, file: File, value: &str) -> Result<(), CgroupError> {
        let path = self.file(cgroup, file);
        // The newline lets an empty value reach the kernel: a write of no bytes would not.
        let write = || {
            fs::OpenOptions::new()
                .write(true)
                .open(&path)?
                .write_all(format!("{value}\n").as_bytes())
        };
        write().map_err(failed(format!("write {value:?} to {}", path.display())))
    }

    fn create(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        let directory = self.directory(cgroup);
        match fs::create_dir(&directory) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result.map_err(failed(format!("create {}", directory.display()))),
        }
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        let directory = self.directory(cgroup);
        match fs::remove_dir(&directory) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(failed(format!("remove {}", directory.display()))),
        }
    }

    fn owner(&self, cgroup: &CgroupPath) -> Result<u32, CgroupError> {
        let directory = self.directory(cgroup);
        let metadata = fs::metadata(&directory).map_err(failed(format!("look at {}", directory.display())))?;
        Ok(metadata.uid())
    }

    fn attributes(&self, cgroup: &CgroupPath) -> Result<BTreeMap<String, String>, CgroupError> {
        let directory = self.directory(cgroup);
        let read = || -> io::Result<BTreeMap<String, String>> {
            // The kernel allows 64 KiB a value and as much for the list of names.
            let mut buffer = vec![0u8; 64 << 10];
            let length = rustix::fs::listxattr(&directory, &mut buffer)?;
            let names: Vec<String> = buffer[..length]
                .split(|byte| *byte == 0)
                .filter_map(|name| std::str::from_utf8(name).ok())
                .filter(|name| name.starts_with(PREFIX))
                .map(str::to_owned)
                .collect();
            let mut attributes = BTreeMap::new();
            for name in names {
                let length = match rustix::fs::getxattr(&directory, name.as_str(), &mut buffer) {
                    // Removed since the names were listed.
                    Err(rustix::io::Errno::NODATA) => continue,
                    length => length?,
                };
                let value = String::from_utf8_lossy(&buffer[..length]).into_owned();
                attributes.insert(name[PREFIX.len()..].to_owned(), value);
            }
            Ok(attributes)
        };
        read().map_err(failed(format!("read extended attributes of {}", directory.display())))
    }

    fn attribute(&self, cgroup: &CgroupPath, name: &str) -> Result<Option<String>, CgroupError> {
        let directory = self.directory(cgroup);
        let mut buffer = [0u8; 256];
        match rustix::fs::getxattr(&directory, format!("{PREFIX}{name}"), &mut buffer) {
            Ok(length) => Ok(Some(String::from_utf8_lossy(&buffer[..length]).into_owned())),
            Err(rustix::io::Errno::NODATA) => Ok(None),
            // Longer than what is asked for in this way.
            Err(rustix::io::Errno::RANGE) => Ok(self.attributes(cgroup)?.remove(name)),
            Err(cause) => Err(failed(format!(
                "read extended attribute {PREFIX}{name} of {}",
                directory.display()
            ))(cause.into())),
        }
    }

    fn set_attribute(&self, cgroup: &CgroupPath, name: &str, value: &str) -> Result<(), CgroupError> {
        let directory = self.directory(cgroup);
        let attribute = format!("{PREFIX}{name}");
        rustix::fs::setxattr(
            &directory,
            attribute.as_str(),
            value.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
        .map_err(io::Error::from)
        .map_err(failed(format!(
            "set {attribute} of {} to {value:?}",
            directory.display()
        )))
    }

    fn remove_attribute(&self, cgroup: &CgroupPath, name: &str) -> Result<(), CgroupError> {
        let directory = self.directory(cgroup);
        let attribute = format!("{PREFIX}{name}");
        match rustix::fs::removexattr(&directory, attribute.as_str()) {
            Err(rustix::io::Errno::NODATA) => Ok(()),
            result => result
                .map_err(io::Error::from)
                .map_err(failed(format!("remove {attribute} of {}", directory.display()))),
        }
    }
}
