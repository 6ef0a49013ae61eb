//! The examples of `docs/operate.md`, which distribute settings: what is wrong with a file stays on the first nodes, and each program that they run
//! is the package's.

use serde_json::Value;

use super::{documents, list, only, repository, strings};

fn example(name: &str) -> Vec<Value> {
    documents(&repository(&format!("docs/examples/{name}")))
}

#[test]
fn the_daemonset_checks_the_settings_restores_the_former_ones_and_stops() {
    let objects = example("rollout-daemonset.yml");
    let (settings, set) = (only(&objects, "ConfigMap"), only(&objects, "DaemonSet"));
    let pod = &set["spec"]["template"]["spec"];
    // nsenter finds the host's process 1 by it.
    assert_eq!(pod["hostPID"], true);
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(set["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(pod["nodeSelector"]["stelia.io/steliad"], "true");
    assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], "5%");
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["privileged"], true);
    // A pod that refuses the settings never becomes ready, so the update goes no further.
    let probe = &container["readinessProbe"]["exec"]["command"];
    assert_eq!(strings(probe), ["test", "-e", "/tmp/done"]);
    let mut rest = container["args"][0].as_str().expect("a script");
    for step in [
        "mv 50-site.toml.new 50-site.toml",
        "--check-config",
        "try-reload-or-restart steliad.service",
        "mv 50-site.toml.before 50-site.toml",
        "exit 1",
        "touch /tmp/done",
    ] {
        rest = rest.split_once(step).unwrap_or_else(|| panic!("{step}: {rest}")).1;
    }
    // New settings are another ConfigMap: a change of the same one would reach all nodes at once, and no pod would apply it.
    assert_eq!(settings["immutable"], true);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], settings["metadata"]["name"]);
    assert_eq!(pod["volumes"][1]["hostPath"]["path"], "/etc/stelia/steliad.toml.d");
    let text = settings["data"]["50-site.toml"].as_str().expect("settings");
    assert!(text.contains("tree = \"auto\""));
}

#[test]
fn the_playbook_stops_at_the_first_node_that_refuses_and_restores_its_settings() {
    let plays = example("rollout-ansible.yml");
    let play = &plays[0][0];
    assert_eq!(play["max_fail_percentage"], 0);
    assert_eq!(play["serial"], serde_json::json!([1, "5%", "25%"]));
    assert_eq!(play["vars"]["settings"], "/etc/stelia/steliad.toml.d/50-site.toml");
    let package = &play["tasks"][0];
    assert_eq!(package["ansible.builtin.apt"]["deb"], "{{ package }}");
    assert_eq!(package["when"], "package is defined");
    let task = &play["tasks"][1];
    let tasks = list(&task["block"]).iter();
    let commands = tasks.filter_map(|task| task["ansible.builtin.command"].as_str());
    let commands: Vec<&str> = commands.collect();
    let [check, apply] = commands.as_slice() else {
        panic!("{commands:?}")
    };
    assert_eq!(*check, "/usr/libexec/stelia/steliad --check-config");
    assert_eq!(*apply, "systemctl try-reload-or-restart steliad.service");
    let rescue = list(&task["rescue"]);
    let restored = rescue[0]["ansible.builtin.copy"]["src"].as_str();
    assert!(restored.expect("a file").contains("backup_file"));
    assert!(!rescue.last().expect("a task")["ansible.builtin.fail"].is_null());
}
