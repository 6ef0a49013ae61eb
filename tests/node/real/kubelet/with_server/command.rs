//! `steliactl resize` for a VM whose CPUs kubelet chose.

use std::fmt::Debug;

use super::server;
use crate::support::*;

/// What the command says with `--dry-run`.
#[derive(Debug)]
pub struct Resize {
    uid: String,
    cpus: String,
    /// What it prints.
    pub text: String,
    /// The CPUs that the VM would have; empty if that is not known.
    pub to: String,
    /// The command that resizes the pod.
    command: String,
}

impl Resize {
    pub fn planned(pod: &Pod, cpus: u32) -> Self {
        let cpus = cpus.to_string();
        let words = ["resize", "default/vm", "--cpus", &cpus, "--dry-run"];
        let text = run(&[&["steliactl"], &words[..]].concat());
        println!("steliactl {}\n{text}", words.join(" "));
        let said = json(&run(&[&["steliactl", "-o", "json"], &words[..]].concat()));
        let expected = (&"planned".into(), &pod.uid.as_str().into());
        assert_eq!((&said["outcome"], &said["pod_uid"]), expected, "{said}");
        let member = |name: &str| said[name].as_str().expect(name).to_owned();
        let command = member("command");
        assert!(text.contains(&command), "{text}");
        assert_eq!(member("from"), pod.exclusive().to_string());
        Self {
            uid: pod.uid.clone(),
            to: member("to"),
            cpus,
            text,
            command,
        }
    }

    /// Without `--dry-run` it says the same, changes nothing and fails.
    pub fn assert_only_said_without_dry_run<T: PartialEq + Debug>(&self, asked: impl Fn() -> T) {
        let before = asked();
        let out = output(&["steliactl", "resize", &self.uid, "--cpus", &self.cpus]);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert_eq!(utf8(&out.stdout).trim(), self.text.trim());
        assert_says(&utf8(&out.stderr), &["nothing has changed; resize its pod"]);
        assert_eq!(asked(), before);
    }

    /// As an administrator does: the printed line, in a shell. Returns kubectl's words where the API server refuses.
    pub fn carry_out(&self) -> Result<(), String> {
        let out = server::in_shell(&self.command);
        let told = said(&out).trim().to_owned();
        println!("  {told}");
        out.status.success().then_some(()).ok_or(told)
    }
}
