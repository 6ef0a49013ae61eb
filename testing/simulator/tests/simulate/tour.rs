//! `make try`: the commands that a reader of README sees first.

use super::*;

#[test]
fn every_command_of_the_tour_answers_and_nothing_is_left() {
    let programs = Path::new(env!("CARGO_BIN_EXE_stelia-simulate"))
        .parent()
        .expect("a folder");
    let scratch = tempfile::tempdir().expect("directory");
    let tour = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("try"))
        .arg(programs)
        .env("TMPDIR", scratch.path())
        .output()
        .expect("try");
    let text = String::from_utf8_lossy(&tour.stdout);
    assert!(tour.status.success(), "{tour:?}");
    assert!(text.matches("\n$ steliactl ").count() >= 10, "{text}");
    // Runs of blanks align columns, and are one here.
    let said = format!("{text}{}", String::from_utf8_lossy(&tour.stderr));
    let said = said
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let said = said.collect::<Vec<_>>().join("\n");
    for part in [
        "shop/database",
        "no vCPUs yet",
        "lab/new is NOT isolated",
        "2 of 3 VMs verified in the kernel",
        "Admitted: yes",
        "kubelet would reject the pod",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    let left: Vec<_> = fs::read_dir(scratch.path()).expect("directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
