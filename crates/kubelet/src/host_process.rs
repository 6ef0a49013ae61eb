//! A process of the node itself: root's, and outside of pods. A tenant may give its processes any name and arguments, and the number of a
//! process that ended may be a tenant's by now.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use stelia_cpus::files;

use crate::ContainerCgroup;
use crate::process_place::{ProcessPlace, pod_in};

/// Behind the path of a program whose file was replaced after its start.
const DELETED: &str = " (deleted)";

/// The process's directory in `/proc` stays open, so every read is of this process, even if its number is reused.
#[derive(Debug)]
pub struct HostProcess {
    directory: File,
    name: String,
}

impl HostProcess {
    /// The process with this number; `None` if it is not the node's, or has ended. `proc` is `/proc`.
    pub fn open(proc: &Path, pid: i32) -> Option<Self> {
        let directory = File::open(proc.join(pid.to_string())).ok()?;
        let status = read(&directory, "status").ok()?;
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        // Real, effective, saved, file system. A user's link to a setuid program has the link's name, the user's arguments and root's effective id.
        let is_root = value("Uid:")?.split_whitespace().all(|id| id == "0");
        let name = value("Name:").map_or_else(|| read(&directory, "comm").ok(), |name| Some(name.to_owned()))?;
        let name = name.trim().to_owned();
        let cgroups = read(&directory, "cgroup").ok()?;
        let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
        (is_root && !is_tenants(cgroup)).then_some(Self { directory, name })
    }

    /// The process's name (`comm`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it runs a program of this name. The kernel shows its executable only to a process with all of its capabilities; others
    /// go by its name.
    pub fn runs(&self, program: &str) -> bool {
        let Ok(executable) = readlinkat(&self.directory, "exe") else {
            return self.name == program;
        };
        let executable = executable.to_string_lossy();
        let executable = executable.strip_suffix(DELETED).unwrap_or(&executable);
        Path::new(executable).file_name() == Some(OsStr::new(program))
    }

    /// Its arguments, the program's name first.
    ///
    /// # Errors
    /// It has ended, or they cannot be read.
    pub fn arguments(&self) -> io::Result<Vec<String>> {
        let text = read(&self.directory, "cmdline")?;
        // Each ends in a NUL.
        let text = text.strip_suffix('\0').unwrap_or(&text);
        Ok(text.split('\0').map(str::to_owned).collect())
    }
}

fn read(directory: &File, name: &str) -> io::Result<String> {
    let file = openat(directory, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(String::from_utf8_lossy(&files::read_open(file)?).into_owned())
}

/// Whether a tenant's process may be in this cgroup: it or one around it is a pod's, a container's or an instance's. CRI-O may have the
/// monitors of containers in the pods' cgroups (`conmon_cgroup = "pod"`).
fn is_tenants(cgroup: &str) -> bool {
    let top = cgroup.split('/').nth(1).unwrap_or_default();
    let is_top = top == "kubepods" || top.ends_with("kubepods.slice") || top == "stelia.slice";
    let mut around = std::iter::successors(Some(cgroup), |inner| Some(inner.rsplit_once('/')?.0));
    let is_inside =
        pod_in(cgroup).is_some() || around.any(|cgroup| ProcessPlace::of(cgroup) != ProcessPlace::Elsewhere);
    !ContainerCgroup::is_monitor(cgroup) && (is_top || is_inside)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    const POD: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
    const UNIT: &str = "podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5";

    #[rstest]
    #[case("/", true)]
    #[case("/init.scope", true)]
    #[case("/system.slice/kubelet.service", true)]
    #[case("/system.slice/crio-conmon-50ab.scope", true)]
    #[case("/system.slice/docker-50ab.scope", true)]
    #[case("/kubepods.slice/kubepods-UNIT.slice/crio-conmon-50ab.scope", true)]
    #[case("/kubepods/burstable/podUID/crio-conmon-50ab", true)]
    #[case("/kubepods.slice/kubepods-UNIT.slice/crio-50ab.scope", false)]
    #[case("/kubepods.slice/kubepods-UNIT.slice/crio-50ab.scope/crio-conmon-50ab.scope", false)]
    #[case("/kubepods.slice/kubepods-UNIT.slice/crio-conmon-50ab.scope/x", false)]
    #[case("/kubepods.slice/kubepods-UNIT.slice/crio-50ab.scope/system.slice/a.service", false)]
    #[case("/kubepods.slice/kubepods-UNIT.slice", false)]
    #[case("/kubepods.slice", false)]
    #[case("/kubepods/burstable/podUID/crio-50ab/crio-conmon-50ab", false)]
    #[case("/kubelet/kubepods/podUID/50ab", false)]
    #[case("/k8s-kubepods.slice/k8s-kubepods-UNIT.slice/crio-50ab.scope", false)]
    #[case("/system.slice/crio.service/kubepods-UNIT.slice:crio:50ab/x", false)]
    #[case(
        "/k8s.io/5555555555555555555555555555555555555555555555555555555555555555/crio-conmon-50ab",
        false
    )]
    #[case("/stelia.slice/stelia-instance-UID.scope/float", false)]
    fn a_process_in_a_cgroup_that_a_tenant_may_be_in_is_not_the_nodes(#[case] cgroup: &str, #[case] is_nodes: bool) {
        let cgroup = cgroup.replace("UNIT", UNIT).replace("UID", POD);
        assert_eq!(is_tenants(&cgroup), !is_nodes, "{cgroup}");
    }

    /// A folder in the form of `/proc` with this process.
    fn process(uids: &str, cgroup: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let folder = proc.path().join("7");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("status"), format!("Name:\tconmon\nUid:\t{uids}\n")).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        fs::write(folder.join("cmdline"), "/usr/bin/conmon\0-c\0\0").unwrap();
        proc
    }

    #[test]
    fn a_process_of_the_node_is_roots_and_outside_of_pods() {
        let proc = process("0\t0\t0\t0", "/system.slice/crio-conmon-1.scope");
        let found = HostProcess::open(proc.path(), 7).unwrap();
        assert_eq!(found.name(), "conmon");
        assert_eq!(found.arguments().unwrap(), ["/usr/bin/conmon", "-c", ""]);
        assert!(HostProcess::open(proc.path(), 8).is_none());
        let pods = format!("/kubepods.slice/kubepods-{UNIT}.slice/crio-1.scope");
        for (uids, cgroup) in [
            ("1000\t1000\t1000\t1000", "/"),
            ("0\t1000\t0\t0", "/"),
            ("1000\t0\t0\t0", "/"),
            ("0\t0\t1000\t0", "/"),
            ("0\t0\t0\t0", &pods),
        ] {
            assert!(
                HostProcess::open(process(uids, cgroup).path(), 7).is_none(),
                "{uids} {cgroup}"
            );
        }
        // Not on the unified hierarchy.
        fs::write(proc.path().join("7/cgroup"), "1:cpuset:/\n").unwrap();
        assert!(HostProcess::open(proc.path(), 7).is_none());
    }

    #[test]
    fn the_program_is_the_executable_or_else_what_the_process_is_called() {
        let proc = process("0\t0\t0\t0", "/");
        let runs = |program: &str| HostProcess::open(proc.path(), 7).unwrap().runs(program);
        assert!(runs("conmon") && !runs("sleep"));
        for (executable, is_conmon) in [
            ("/usr/libexec/crio/conmon", true),
            ("/usr/bin/conmon (deleted)", true),
            ("/usr/bin/sleep", false),
            ("/usr/bin/conmon/sleep", false),
        ] {
            let exe = proc.path().join("7/exe");
            let _ = fs::remove_file(&exe);
            symlink(executable, exe).unwrap();
            assert_eq!(runs("conmon"), is_conmon, "{executable}");
        }
    }

    #[test]
    fn what_is_read_is_of_the_process_that_was_opened() {
        let proc = process("0\t0\t0\t0", "/");
        let opened = HostProcess::open(proc.path(), 7).unwrap();
        fs::rename(proc.path().join("7"), proc.path().join("ended")).unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        fs::write(proc.path().join("7/cmdline"), "evil\0").unwrap();
        assert_eq!(opened.arguments().unwrap()[0], "/usr/bin/conmon");
    }
}
