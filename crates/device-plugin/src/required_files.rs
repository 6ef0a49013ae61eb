//! The files of the node that a container gets.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where the files are. The paths in the container are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths {
    /// The program that is the container's first process.
    pub(crate) runner: PathBuf,
    /// The directory of the runner socket: the socket itself may be made anew.
    pub(crate) socket_folder: PathBuf,
    /// The device nodes that a container gets where they exist.
    pub(crate) devices: Vec<PathBuf>,
}

/// Which of the files there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequiredFiles {
    /// A file without which no VM starts, and why it cannot be given.
    pub(crate) problem: Option<String>,
    /// The device nodes that exist, in the order of the setting.
    pub(crate) devices: Vec<String>,
}

/// The device without which no VM starts, if the setting names it.
const KVM: &str = "/dev/kvm";

impl RequiredFiles {
    /// Symbolic links are not followed: what is given is what the path itself is.
    pub(crate) fn read(paths: &Paths) -> Self {
        let is_device = |kind: FileType| kind.is_char_device() || kind.is_block_device();
        let mut found = Self::default();
        let needed = [
            problem(&paths.socket_folder, "directory", |kind| kind.is_dir()),
            problem(&paths.runner, "regular file", |kind| kind.is_file()),
        ];
        found.problem = needed.into_iter().flatten().next();
        for device in &paths.devices {
            match problem(device, "device node", is_device) {
                None => found.devices.push(device.display().to_string()),
                Some(problem) if device == Path::new(KVM) => found.problem = found.problem.or(Some(problem)),
                Some(_) => {}
            }
        }
        found
    }
}

/// Why the path cannot be given as a file of this kind.
fn problem(path: &Path, kind: &str, is_kind: impl Fn(FileType) -> bool) -> Option<String> {
    let path_shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(metadata) if is_kind(metadata.file_type()) => None,
        Ok(_) => Some(format!("{path_shown} is not a {kind}")),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Some(format!("{path_shown} does not exist")),
        Err(cause) => Some(format!("look at {path_shown}: {cause}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(folder: &Path, devices: &[&str]) -> Paths {
        fs::create_dir(folder.join("sockets")).unwrap();
        fs::write(folder.join("runner"), "").unwrap();
        Paths {
            runner: folder.join("runner"),
            socket_folder: folder.join("sockets"),
            devices: devices.iter().map(PathBuf::from).collect(),
        }
    }

    #[test]
    fn a_device_that_does_not_exist_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path(), &["/dev/null", "/dev/no-such-device", "/dev/zero"]);
        let files = RequiredFiles::read(&paths);
        assert_eq!(
            files,
            RequiredFiles {
                problem: None,
                devices: vec!["/dev/null".into(), "/dev/zero".into()]
            }
        );
    }

    #[test]
    fn a_symbolic_link_is_not_a_device_and_not_the_runner() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/null", &link).unwrap();
        let mut paths = paths(folder.path(), &[link.to_str().unwrap()]);
        assert_eq!(RequiredFiles::read(&paths), RequiredFiles::default());
        fs::remove_file(&paths.runner).unwrap();
        symlink("/bin/true", &paths.runner).unwrap();
        let problem = RequiredFiles::read(&paths).problem.unwrap();
        assert_eq!(problem, format!("{} is not a regular file", paths.runner.display()));
        paths.socket_folder = folder.path().join("none");
        let problem = RequiredFiles::read(&paths).problem.unwrap();
        assert!(problem.ends_with("none does not exist"), "{problem}");
    }

    #[test]
    fn kvm_is_needed_where_the_setting_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path(), &[KVM]);
        let files = RequiredFiles::read(&paths);
        if Path::new(KVM).exists() {
            assert_eq!(files.devices, [KVM])
        } else {
            assert_eq!(files.problem.unwrap(), "/dev/kvm does not exist")
        }
    }
}
