//! `list` and `show`.

use super::*;

#[test]
fn list_is_a_table_that_pipes() {
    assert_eq!(
        steliactl(no_vm().path(), &["list"]).unwrap(),
        "\
POD         CONTAINER  STATE     CPUS  FLOAT    DEGRADED
team-a/web  compute    isolated  2-3   0-1,4-7  anchor is gone
"
    );
}

#[test]
fn list_without_legend_is_rows_only() {
    let text = steliactl(no_vm().path(), &["list", "--no-legend"]).unwrap();
    assert_eq!(text, "team-a/web  compute  isolated  2-3  0-1,4-7  anchor is gone\n");
}

#[test]
fn list_as_json_identifies_the_pod() {
    let text = steliactl(no_vm().path(), &["--json", "list"]).unwrap();
    let expected = serde_json::json!([{
        "pod_uid": UID, "pod_namespace": "team-a", "pod_name": "web", "container": "compute", "object": OBJECT,
        "state": "isolated", "exclusive_cpus": "2-3", "float_cpus": "0-1,4-7", "isolation": "", "adopted_by": "", "degraded": ["anchor is gone"],
    }]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
}

#[test]
fn show_prints_the_promise_and_then_the_threads() {
    assert_eq!(
        steliactl(a_vm().path(), &["show", "3ce"]).unwrap(),
        "\
PodNamespace:         team-a
PodName:              web
PodUID:               3ceda12c-3ee9-40fa-9f42-61428fe654a6
State:                isolated
Degraded:             anchor is gone
FloatCPUs:            0-1,4-7
MemoryNodes:          -
ControlGroup:         /stelia.slice/stelia-instance-3ceda12c.scope
OriginControlGroup:   /kubepods.slice/cri-containerd-1.scope
RegisteredTimestamp:  2024-12-31T23:59:59.000000Z

qemu-system-x86 (pid 900, 7 in the container)
TID  THREAD_NAME      CGROUP  ALLOWED_CPUS  CPU TIME
900  qemu-system-x86  float   0-1,4-7          1.01s
905  CPU 0/KVM        vcpu    2             1234.57s

anchor?[2J (pid 801, 2 in the container)
TID  THREAD_NAME  CGROUP  ALLOWED_CPUS  CPU TIME
801  anchor?[2J   origin  0-7              0.01s
"
    );
}

#[test]
fn show_as_json_holds_the_threads_too() {
    let text = steliactl(a_vm().path(), &["show", UID, "--json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["registered_us"], 1_735_689_599_000_000u64);
    assert_eq!(value["degraded"], serde_json::json!(["anchor is gone"]));
    let vcpu = serde_json::json!(
        {"tid": 905, "name": "CPU 0/KVM", "cgroup": "vcpu", "allowed_cpus": "2", "cpu_time_us": 1_234_570_000});
    assert_eq!(value["processes"][0]["threads"][1], vcpu);
}

#[test]
fn show_of_an_instance_without_processes_is_its_properties() {
    let text = steliactl(no_vm().path(), &["show", UID]).unwrap();
    assert_eq!(
        text.lines().last(),
        Some("RegisteredTimestamp:  2024-12-31T23:59:59.000000Z")
    );
}
