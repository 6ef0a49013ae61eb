//! Pods have names: what a command is called with, and what it prints.

use super::*;

/// Two pods of one name in two namespaces, and one that the runtime does not name.
const SCENARIO: &str = r#"
[host]
sockets = 2
cores = 2
threads = 2

[[pod]]
uid = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5"
name = "team-a/web"
cpus = "2-3"
vcpus = 2

[[pod]]
uid = "b9e40000-21de-472d-817c-fa9d4306cb7d"
name = "team-b/web"
cpus = "4"
vcpus = 0

[[pod]]
uid = "416de7c2-21de-472d-817c-fa9d4306cb7d"
cpus = "6"
vcpus = 0
"#;
const OTHER: &str = "b9e40000-21de-472d-817c-fa9d4306cb7d";

impl Simulation {
    /// The exit code, standard output and standard error.
    pub(super) fn told(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let out = self.steliactl(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    }
}

#[test]
fn a_vm_is_called_by_its_pods_name() {
    let simulation = Simulation::start(SCENARIO);
    let uid = |asked: &str| {
        let shown = simulation.ctl(&["--json", "show", asked]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let instance = &shown["instance"];
        (instance["pod"].clone(), instance["pod_name"].clone())
    };
    for asked in ["team-a/web", VM] {
        assert_eq!(uid(asked), (VM.into(), "web".into()), "{asked}");
    }
    assert_eq!(uid(WAITING), (WAITING.into(), "".into()));
    let (code, _, why) = simulation.told(&["why", "web"]);
    let candidates = format!("team-a/web ({VM}), team-b/web ({OTHER})");
    assert!(code == Some(2) && why.contains(&candidates), "{why}");
    for asked in ["team-c/web", "team-a", "we"] {
        assert_eq!(simulation.told(&["why", asked]).0, Some(3), "{asked}");
    }
    assert_eq!(simulation.told(&["show", "team-c"]).0, Some(3));
    assert_eq!(simulation.told(&["list", "-n", "team-c"]).0, Some(3));
    // Nor is a command that takes one VM about those that a pattern fits.
    assert_eq!(simulation.told(&["release", "*"]).0, Some(2));
    // Where several VMs may be selected, it is a pattern.
    for (asked, other) in [("web", true), ("team-a/*", false), ("we*", true), ("*-a/w?b", false)] {
        let shown = simulation.ctl(&["show", asked]);
        assert!(shown.contains(VM) && shown.contains(OTHER) == other, "{asked}: {shown}");
    }
    // The beginning of a name or UID is none, in any command.
    for command in [
        "list", "show", "map", "top", "monitor", "verify", "noise", "why", "release",
    ] {
        for asked in ["we", "team-a", "team-a/", "team-a/we", &VM[..8]] {
            let (code, shown, why) = simulation.told(&[command, asked]);
            assert_eq!((code, shown.as_str()), (Some(3), ""), "{command} {asked}: {why}");
        }
    }
    let (_, _, why) = simulation.told(&["show", "team-a/we"]);
    assert!(why.contains("did you mean team-a/web"), "{why}");
    assert!(simulation.ctl(&["why", "team-a/web"]).contains("team-a/web"));
    assert!(simulation.verify(&["team-b/web"]).1.contains(" of 1 VM verified"));
    simulation.ctl(&["release", "team-b/web"]);
    assert!(simulation.ctl(&["show", "web"]).contains(VM));
}

#[test]
fn names_are_printed_and_completed() {
    let simulation = Simulation::start(SCENARIO);
    let list = simulation.ctl(&["--no-legend", "list"]);
    let firsts: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(firsts, [WAITING, "team-b/web", "team-a/web"], "trouble first");
    let told = simulation.completed(&simulation.address);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let words: Vec<&str> = told.lines().filter(|line| !line.starts_with('-')).collect();
    assert!(words.contains(&"team-a/web") && words.contains(&WAITING), "{told}");
    assert!(!words.contains(&VM), "{told}");
    let mut monitor = simulation.spawn(&["monitor"]);
    let mut lines = BufReader::new(monitor.stdout.take().expect("stdout")).lines();
    assert!(
        lines
            .next()
            .expect("text")
            .expect("a line")
            .ends_with("steliad is running")
    );
    simulation.ctl(&["release", "team-b/web"]);
    let gone = lines.map(|line| line.expect("a line")).take(20);
    let mut gone = gone.filter(|line| line.ends_with("team-b/web  released or ended"));
    assert!(gone.next().is_some());
    watching::signal(&monitor, nix::sys::signal::Signal::SIGTERM);
    watching::ends(monitor);
}
