//! What a manager asks its runtime about each container when the manager is restarted, and what it accepts as an answer.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use stelia_cpus::text::excerpt;
use stelia_kernel::oci::{Manager, Runtime};

/// Adds the arguments by which the manager asks. containerd asks its shim for the container's processes (`Pids` in `loadShim`), and the shim the runtime (`Ps` of go-runc);
/// CRI-O asks the runtime for the container's state (`UpdateContainerStatus`).
pub(super) fn ask(command: &mut Command, runtime: &Runtime, root: &Path, log: &Path, container_id: &str) {
    command.arg("--root").arg(root).stdin(Stdio::null());
    if runtime.manager == Manager::Containerd {
        command.arg("--log").arg(log).args(["--log-format", "json"]);
    }
    if runtime.systemd_cgroup {
        command.arg("--systemd-cgroup");
    }
    match runtime.manager {
        Manager::Containerd => command.args(["ps", "--format", "json", container_id]),
        Manager::CriO => command.args(["state", container_id]),
    };
}

/// Whether the manager takes the container with the process `pid` for alive. `logged` is what the runtime wrote to its log.
///
/// # Errors
/// Why not, in one line, with what the runtime printed.
pub(super) fn answer(manager: Manager, output: &Output, logged: &str, pid: u32) -> Result<(), String> {
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let words = [errors.trim(), printed.trim(), logged.trim()];
        let words = words.into_iter().find(|words| !words.is_empty());
        return Err(excerpt::cause(&words.map_or(output.status.to_string(), str::to_owned)));
    }
    let found: Option<Value> = serde_json::from_str(printed.trim()).ok();
    let is_alive = found.is_some_and(|found| match manager {
        // An empty list is a container that containerd removes.
        Manager::Containerd => found.as_array().is_some_and(|pids| pids.contains(&pid.into())),
        Manager::CriO => found["status"] == "running" && found["pid"] == pid,
    });
    if is_alive {
        Ok(())
    } else {
        Err(excerpt::cause(&format!(
            "process {pid} is not found in {:?}",
            printed.trim()
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use stelia_kernel::oci::Kind;

    use super::*;

    fn runtime(manager: Manager) -> Runtime {
        Runtime {
            manager,
            kind: Kind::Runc,
            binary: "/usr/sbin/runc".into(),
            root: "/run/containerd/runc/k8s.io".into(),
            systemd_cgroup: true,
        }
    }

    fn line(manager: Manager) -> String {
        let mut asked = Command::new("");
        let (root, log) = (Path::new("/tmp/root"), Path::new("/tmp/log.json"));
        ask(&mut asked, &runtime(manager), root, log, "9c");
        let words: Vec<_> = asked.get_args().collect();
        words.join(" ".as_ref()).to_string_lossy().into_owned()
    }

    #[test]
    fn the_runtime_is_asked_what_its_manager_asks_it() {
        assert_eq!(
            line(Manager::Containerd),
            "--root /tmp/root --log /tmp/log.json --log-format json --systemd-cgroup ps --format json 9c"
        );
        assert_eq!(line(Manager::CriO), "--root /tmp/root --systemd-cgroup state 9c");
    }

    fn answered(manager: Manager, code: i32, stdout: &str, stderr: &str, logged: &str) -> Result<(), String> {
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        answer(manager, &output, logged, 4711)
    }

    #[test]
    fn a_list_with_the_process_is_an_answer_to_containerd() {
        let ask = |stdout| answered(Manager::Containerd, 0, stdout, "", "");
        assert_eq!(ask("[4711]\n"), Ok(()));
        assert_eq!(ask("[4710,4711]"), Ok(()));
        for other in ["[]", "null", "[47]", "", "4711", "{}"] {
            assert!(ask(other).unwrap_err().contains("4711 is not found"), "{other:?}");
        }
    }

    #[test]
    fn a_running_container_is_an_answer_to_crio() {
        let ask = |stdout| answered(Manager::CriO, 0, stdout, "", "");
        assert_eq!(ask(r#"{"id":"9c","status":"running","pid":4711}"#), Ok(()));
        assert!(ask(r#"{"id":"9c","status":"stopped","pid":0}"#).is_err());
        assert!(ask("[4711]").is_err());
    }

    #[test]
    fn of_a_failure_the_runtimes_words_are_kept_in_one_line_of_bounded_length() {
        let ask = |stderr, logged| answered(Manager::Containerd, 1, "", stderr, logged).unwrap_err();
        assert_eq!(
            ask("read: operation not supported\n", "x"),
            "read: operation not supported"
        );
        assert_eq!(ask("", r#"{"level":"error"}"#), r#"{"level":"error"}"#);
        assert_eq!(ask("", ""), "exit status: 1");
        let long = ask(&"a\n".repeat(10_000), "");
        assert!(long.len() <= 400 && !long.contains('\n'), "{long}");
    }
}
