//! The copy of a container's state, in which the stand-in replaces the container.

use anyhow::Context;
use serde_json::{Value, json};
use stelia_kernel::oci::Kind;

/// The process that replaces a container's first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    /// In clock ticks since boot: it tells runtimes that the number still belongs to this process.
    pub start: u64,
    /// The container's cgroup, below the hierarchy's root; begins with `/`.
    pub cgroup: String,
}

/// The state with the stand-in's cgroup and process.
///
/// # Errors
/// The state has not the form that runc (libcontainer's `State`) or crun (`libcrun_container_status_t`) gives it on
/// cgroup v2. A missing member is not added: the runtime would not read it.
pub(super) fn with_stand_in(kind: Kind, state: &str, stand_in: &Process) -> anyhow::Result<String> {
    let mut state: Value = serde_json::from_str(state).context("not JSON")?;
    let members = match kind {
        // On cgroup v2 the only path has an empty controller name.
        Kind::Runc => [
            ("/cgroup_paths/", json!(format!("/sys/fs/cgroup{}", stand_in.cgroup))),
            ("/init_process_pid", json!(stand_in.pid)),
            ("/init_process_start", json!(stand_in.start)),
        ],
        Kind::Crun => [
            ("/cgroup-path", json!(stand_in.cgroup)),
            ("/pid", json!(stand_in.pid)),
            ("/process-start-time", json!(stand_in.start)),
        ],
    };
    for (member, value) in members {
        let place = state.pointer_mut(member);
        let same_kind =
            |found: &&mut Value| (found.is_string(), found.is_number()) == (value.is_string(), value.is_number());
        let place = place.filter(same_kind).with_context(|| format!("no {member}"))?;
        *place = value;
    }
    Ok(state.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_in() -> Process {
        Process {
            pid: 4711,
            start: 90_017,
            cgroup: "/system.slice/a.service/container".into(),
        }
    }

    fn rewritten(kind: Kind, state: &str) -> Value {
        serde_json::from_str(&with_stand_in(kind, state, &stand_in()).unwrap()).unwrap()
    }

    #[test]
    fn runcs_state_has_the_stand_ins_cgroup_and_process_and_the_rest_unchanged() {
        let state = r#"{"id":"9c","init_process_pid":812,"init_process_start":5000,"created":"2026-11-20T10:00:00.1Z",
            "config":{"cgroups":{"path":"","scope_prefix":"cri-containerd","systemd":true},"rlimits":null},
            "rootless":false,"cgroup_paths":{"":"/sys/fs/cgroup/kubepods.slice/x.scope"},
            "namespace_paths":{"NEWPID":"/proc/812/ns/pid"},"external_descriptors":["/dev/null"],"intel_rdt_path":""}"#;
        let mut expected: Value = serde_json::from_str(state).unwrap();
        expected["init_process_pid"] = json!(4711);
        expected["init_process_start"] = json!(90_017);
        expected["cgroup_paths"][""] = json!("/sys/fs/cgroup/system.slice/a.service/container");
        assert_eq!(rewritten(Kind::Runc, state), expected);
    }

    #[test]
    fn cruns_status_has_the_stand_ins_cgroup_and_process() {
        let state = r#"{"pid":812,"process-start-time":5000,"cgroup-path":"/kubepods.slice/x.scope/container",
            "scope":"x.scope","rootfs":"/r","systemd-cgroup":true,"bundle":"/b","created":"2026","owner":"","detached":true,
            "external_descriptors":"[\"/dev/null\"]"}"#;
        let mut expected: Value = serde_json::from_str(state).unwrap();
        expected["pid"] = json!(4711);
        expected["process-start-time"] = json!(90_017);
        expected["cgroup-path"] = json!("/system.slice/a.service/container");
        assert_eq!(rewritten(Kind::Crun, state), expected);
    }

    #[test]
    fn a_state_of_another_form_is_not_guessed_at() {
        let v1 = r#"{"init_process_pid":1,"init_process_start":1,"cgroup_paths":{"cpuset":"/sys/fs/cgroup/cpuset/x"}}"#;
        for (kind, state) in [
            (Kind::Runc, v1),
            (Kind::Runc, r#"{"init_process_pid":1,"cgroup_paths":{"":"/x"}}"#),
            (Kind::Runc, "[]"),
            (Kind::Runc, ""),
            (Kind::Crun, r#"{"pid":1,"process-start-time":1,"cgroup-path":null}"#),
        ] {
            assert!(with_stand_in(kind, state, &stand_in()).is_err(), "{kind:?} {state}");
        }
    }
}
