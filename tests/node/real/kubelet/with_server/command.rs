//! A resize of a VM whose CPUs kubelet chose: what `steliactl resize` says of it, and the pod's own, by kubectl.

use std::fmt::Debug;

use super::super::manifest::INSTANCE;
use super::server;
use crate::support::*;

/// A VM's pod with another number of CPUs.
#[derive(Debug)]
pub struct Resize {
    uid: String,
    cpus: String,
}

impl Resize {
    /// The command changes nothing and says what to do instead.
    pub fn planned(pod: &Pod, cpus: u32) -> Self {
        let cpus = cpus.to_string();
        let said = json(&run(&[
            "steliactl",
            "-o",
            "json",
            "resize",
            "default/vm",
            "--cpus",
            &cpus,
            "--dry-run",
        ]));
        let expected = (&"planned".into(), &pod.uid.as_str().into());
        assert_eq!((&said["outcome"], &said["pod_uid"]), expected, "{said}");
        assert_eq!(said["to"], pod.exclusive().to_string(), "{said}");
        assert!(
            said["fix"].as_str().is_some_and(|fix| fix.contains("kubectl")),
            "{said}"
        );
        let uid = pod.uid.clone();
        Self { uid, cpus }
    }

    /// Without `--dry-run` it changes nothing either, and fails.
    pub fn assert_only_said_without_dry_run<T: PartialEq + Debug>(&self, asked: impl Fn() -> T) {
        let before = asked();
        let out = output(&["steliactl", "resize", &self.uid, "--cpus", &self.cpus]);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert_says(&utf8(&out.stderr), &["nothing has changed"]);
        assert_eq!(asked(), before);
    }

    /// Resizes the pod in place. Returns kubectl's words where the API server refuses.
    pub fn carry_out(&self) -> Result<(), String> {
        let amounts = serde_json::json!({ "cpu": self.cpus });
        let container =
            serde_json::json!({ "name": INSTANCE, "resources": { "requests": amounts, "limits": amounts } });
        let patch = serde_json::json!({ "spec": { "containers": [container] } });
        let out = server::in_shell(&format!(
            "kubectl patch pod vm -n default --subresource resize --patch '{patch}'"
        ));
        let told = said(&out).trim().to_owned();
        out.status.success().then_some(()).ok_or(told)
    }
}
