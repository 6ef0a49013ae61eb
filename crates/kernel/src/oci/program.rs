//! A program that only root can have put where it is. It is executed by its descriptor, so what was checked is what runs.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, open, openat, readlinkat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use stelia_kubelet::{PodUid, home};

use super::Identity;

/// As many as the kernel follows.
const MAX_LINKS: u32 = 40;

/// What its group and others may write.
const WRITABLE: u32 = 0o022;
const EXECUTABLE: u32 = 0o111;

/// Where a file of root may be a container's: views of processes, and what runtimes keep by default.
const OF_CONTAINERS: [&str; 5] = [
    "/proc",
    "/run/containers",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
];

/// The names of storage drivers' folders, wherever a runtime has its own.
const STORAGE: [&str; 4] = ["overlay", "overlay2", "overlay-containers", "vfs"];
/// What containerd's folders for its plugins begin with: snapshots, bundles, sandboxes.
const PLUGIN: &[u8] = b"io.containerd.";

/// Why a program is not to be executed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{} does not exist or is not an executable file", .0.display())]
    NotExecutable(PathBuf),
    /// Others than root may have put it there.
    #[error("{} is not trusted to run as root: {} {cause}", program.display(), place.display())]
    Untrusted {
        program: PathBuf,
        /// The program itself, or a folder above it.
        place: PathBuf,
        cause: &'static str,
    },
    #[error("open {}: {cause}", path.display())]
    Open { path: PathBuf, cause: Errno },
}

/// A program of the node, open.
#[derive(Debug)]
pub struct Program {
    file: File,
    identity: Identity,
}

impl Program {
    /// Opens the program at this absolute path of the node. `node` is `/`.
    ///
    /// # Errors
    /// It is not the node's: it or a folder above it, behind symbolic links too, does not belong to the owner of `/`, is writable by others,
    /// or is among the files of pods and containers.
    pub fn open(node: &Path, path: &Path) -> Result<Self, ProgramError> {
        let file = Walk::to(node, path)?;
        let found = file.metadata().map_err(|cause| failed(path, errno(&cause)))?;
        if !found.is_file() || found.mode() & EXECUTABLE == 0 {
            return Err(ProgramError::NotExecutable(path.to_owned()));
        }
        let identity = Identity::from(&found);
        Ok(Self { file, identity })
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// A command that executes it under this name.
    pub fn command(&self, name: &Path) -> io::Result<Command> {
        // A script's interpreter opens it after the program is replaced by the interpreter.
        fcntl_setfd(&self.file, FdFlags::empty())?;
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(name);
        Ok(command)
    }
}

/// The way to a file, folder by folder, so that each is checked.
struct Walk<'a> {
    program: &'a Path,
    /// The owner of `/`.
    root: u32,
    /// From `/` to where the walk is.
    open: Vec<File>,
    place: PathBuf,
}

impl<'a> Walk<'a> {
    fn to(node: &Path, program: &'a Path) -> Result<File, ProgramError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(node, flags, Mode::empty()).map_err(|cause| failed(program, cause))?;
        let mut walk = Self {
            program,
            root: 0,
            open: Vec::new(),
            place: PathBuf::from("/"),
        };
        let root = File::from(root);
        walk.root = walk.metadata(&root)?.uid();
        walk.enter(root)?;
        let (mut ahead, mut links) = (names(program), 0);
        while let Some(name) = ahead.pop() {
            if let Some(target) = walk.step(&name)? {
                links += 1;
                if links > MAX_LINKS {
                    return Err(failed(program, Errno::LOOP));
                }
                if target.is_absolute() {
                    walk.open.truncate(1);
                    walk.place = PathBuf::from("/");
                }
                ahead.extend(names(&target));
            }
        }
        walk.open.pop().ok_or_else(|| failed(program, Errno::NOENT))
    }

    /// Goes to what has this name here; the answer is the target of a symbolic link, which is not followed.
    fn step(&mut self, name: &OsStr) -> Result<Option<PathBuf>, ProgramError> {
        if name == ".." {
            // `/..` is `/`.
            self.open.truncate(self.open.len().saturating_sub(1).max(1));
            self.place.pop();
            return Ok(None);
        }
        let program = self.program;
        let failed = |cause| failed(program, cause);
        let here = self.open.last().ok_or_else(|| failed(Errno::NOENT))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = File::from(openat(here, name, flags, Mode::empty()).map_err(failed)?);
        if self.metadata(&next)?.is_symlink() {
            let target = readlinkat(&next, "", Vec::new()).map_err(failed)?;
            return Ok(Some(OsStr::from_bytes(target.as_bytes()).into()));
        }
        self.place.push(name);
        self.enter(next)?;
        Ok(None)
    }

    fn enter(&mut self, file: File) -> Result<(), ProgramError> {
        if let Some(cause) = distrust_reason(&self.place, &self.metadata(&file)?, self.root) {
            return Err(ProgramError::Untrusted {
                program: self.program.to_owned(),
                place: self.place.clone(),
                cause,
            });
        }
        self.open.push(file);
        Ok(())
    }

    fn metadata(&self, file: &File) -> Result<Metadata, ProgramError> {
        file.metadata().map_err(|cause| failed(self.program, errno(&cause)))
    }
}

fn failed(path: &Path, cause: Errno) -> ProgramError {
    let path = path.to_owned();
    match cause {
        Errno::NOENT | Errno::NOTDIR => ProgramError::NotExecutable(path),
        cause => ProgramError::Open { path, cause },
    }
}

fn errno(cause: &io::Error) -> Errno {
    Errno::from_io_error(cause).unwrap_or(Errno::IO)
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

/// Why others than root may have put this file or folder here, or what is in it.
fn distrust_reason(place: &Path, found: &Metadata, root: u32) -> Option<&'static str> {
    let is_pods = place.ancestors().any(|place| {
        let name = place.file_name().and_then(OsStr::to_str).unwrap_or_default();
        PodUid::parse(name).is_ok() && place.parent().is_some_and(|above| above.ends_with("pods"))
    });
    let is_known = OF_CONTAINERS
        .iter()
        .chain(&home::ROOTS)
        .any(|known| place.starts_with(known));
    let mut names = place.iter();
    let is_storage =
        names.any(|name| STORAGE.iter().any(|known| name == *known) || name.as_bytes().starts_with(PLUGIN));
    if is_pods || is_known || is_storage {
        Some("has files of pods or containers")
    } else if found.uid() != root {
        Some("does not belong to root")
    } else if found.mode() & WRITABLE != 0 {
        Some("is writable by its group or by others")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_root::Root;

    /// One with the program `/opt/bin/runc`.
    fn node() -> Root {
        let node = Root::new();
        node.program("opt/bin/runc", "#!/bin/sh\n");
        node
    }

    impl Root {
        /// What a program is opened as, or why it is not.
        fn opened(&self, path: &str) -> Result<Identity, String> {
            let opened = Program::open(self, Path::new(path));
            opened
                .map(|program| program.identity())
                .map_err(|error| error.to_string())
        }
    }

    #[test]
    fn a_program_that_others_than_root_can_replace_is_not_opened() {
        let node = node();
        let runc = Identity::of(&node.at("opt/bin/runc")).unwrap();
        assert_eq!(node.opened("/opt/bin/runc"), Ok(runc));
        for (place, mode) in [("opt/bin/runc", 0o755), ("opt/bin", 0o755), ("opt", 0o755), ("", 0o700)] {
            for writable in [0o002, 0o020] {
                node.mode(place, mode | writable);
                let refused = node.opened("/opt/bin/runc").unwrap_err();
                let expected = format!(
                    "/opt/bin/runc is not trusted to run as root: /{place} is writable by its group or by others"
                );
                assert_eq!(refused, expected);
            }
            node.mode(place, mode);
        }
        assert_eq!(node.opened("/opt/bin/runc"), Ok(runc));
    }

    #[test]
    fn what_does_not_belong_to_the_owner_of_the_root_is_anothers() {
        let node = node();
        let found = node.at("opt/bin/runc").metadata().unwrap();
        let owner = found.uid();
        assert_eq!(distrust_reason(Path::new("/opt/bin/runc"), &found, owner), None);
        let cause = distrust_reason(Path::new("/opt/bin/runc"), &found, owner + 1);
        assert_eq!(cause, Some("does not belong to root"));
    }

    #[test]
    fn a_link_is_as_good_as_what_it_leads_to() {
        let node = node();
        node.program("var/lib/kubelet/plugins/evil", "").program("srv/runc", "");
        let runc = node.opened("/opt/bin/runc");
        node.link("runc", "opt/bin/relative");
        node.link("/opt/bin", "sbin");
        node.link("../../../../sbin/./relative", "usr/sbin/both");
        for path in [
            "/opt/bin/relative",
            "/sbin/runc",
            "/usr/sbin/both",
            "/opt/../opt/bin/runc",
        ] {
            assert_eq!(node.opened(path), runc, "{path}");
        }
        node.link("/var/lib/kubelet/plugins/evil", "usr/sbin/evil");
        node.link("/srv/runc", "usr/sbin/service");
        node.mode("srv", 0o777);
        for (path, place) in [("/usr/sbin/evil", "/var/lib/kubelet"), ("/usr/sbin/service", "/srv")] {
            let refused = node.opened(path).unwrap_err();
            assert!(refused.contains(&format!("as root: {place} ")), "{refused}");
        }
        node.link("self", "opt/self");
        assert!(node.opened("/opt/self").unwrap_err().starts_with("open /opt/self: "));
    }

    #[test]
    fn nothing_among_the_files_of_pods_and_containers_is_run() {
        let pods = "pods/b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
        for place in [
            "/proc/4711/root/evil",
            "/var/lib/kubelet/plugins/evil",
            "/var/lib/k0s/kubelet/evil",
            &format!("/data/kubelet/{pods}/volumes/kubernetes.io~empty-dir/x/evil"),
            "/var/lib/containerd/tmpmounts/evil",
            "/srv/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs/evil",
            "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/9c/rootfs/evil",
            "/srv/storage/overlay/50ab/merged/evil",
            "/var/lib/docker/volumes/x/_data/evil",
        ] {
            let node = node();
            node.program(place, "");
            let refused = node.opened(place).unwrap_err();
            assert!(refused.contains("has files of pods or containers"), "{refused}");
        }
        // Runtimes of distributions.
        for place in [
            "/var/lib/rancher/k3s/data/1f/bin/runc",
            "/var/lib/k0s/bin/runc",
            "/run/torcx/bin/runc",
        ] {
            assert!(node().program(place, "").opened(place).is_ok(), "{place}");
        }
    }

    #[test]
    fn a_folder_or_a_file_that_is_not_executable_is_no_program() {
        let node = node();
        node.file("opt/bin/text", "").mode("opt/bin/text", 0o644);
        for path in ["/opt/bin/text", "/opt/bin", "/opt/bin/none", "/opt/bin/runc/x", "/"] {
            assert_eq!(
                node.opened(path),
                Err(format!("{path} does not exist or is not an executable file"))
            );
        }
    }

    #[test]
    fn what_was_opened_is_what_runs_whatever_has_its_name_by_then() {
        let node = node();
        node.program("opt/bin/tool", "#!/bin/sh\necho checked $1\n");
        let program = Program::open(&node, Path::new("/opt/bin/tool")).unwrap();
        node.program("opt/bin/evil", "#!/bin/sh\necho evil\n");
        fs::rename(node.at("opt/bin/evil"), node.at("opt/bin/tool")).unwrap();
        let mut command = program.command(Path::new("/opt/bin/tool")).unwrap();
        let output = command.arg("twice").output().unwrap();
        assert_eq!(output.stdout, b"checked twice\n");
    }
}
