//! The files in `packaging/completions/`, in the shells they are for.

use super::terminal::Terminal;
use super::*;

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/completions");

/// A PATH on which steliactl is found.
fn path() -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("completions.{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    // Another test of this process may have made it.
    let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_steliactl-simulated"), folder.join("steliactl"));
    format!("PATH={}:/usr/bin:/bin", folder.display())
}

#[test]
fn bash_completes_commands_and_instances() {
    let simulation = Simulation::start(&scenario(""));
    let complete = |command: &str, word: &str| {
        let text = format!(
            "source {FILES}/steliactl.bash; COMP_WORDS=({command} {word}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _clap_complete_steliactl steliactl {word} x; echo ${{COMPREPLY[@]}}"
        );
        let out = simulation.run("env", &[&path(), "bash", "--norc", "-c", &text]);
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    assert_eq!(complete("steliactl", "stat"), "status");
    assert_eq!(complete("steliactl show", &VM[..4]), VM);
}

#[test]
fn fish_completes_commands_and_instances() {
    let simulation = Simulation::start(&scenario(""));
    // fish makes folders in it.
    let home = tempfile::tempdir().expect("directory");
    let home = format!("HOME={}", home.path().display());
    let complete = |line: &str| {
        let text = format!("source {FILES}/steliactl.fish; complete -C '{line}'");
        let out = simulation.run("env", &[&path(), &home, "fish", "--no-config", "-c", &text]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.split_whitespace().next().map(str::to_owned)
    };
    assert_eq!(complete("steliactl stat").as_deref(), Some("status"));
    assert_eq!(complete(&format!("steliactl show {}", &VM[..4])).as_deref(), Some(VM));
}

#[test]
fn zsh_completes_commands_and_instances() {
    let simulation = Simulation::start(&scenario(""));
    let home = tempfile::tempdir().expect("directory");
    let settings = format!("fpath=({FILES} $fpath)\nautoload -Uz compinit\ncompinit -u -D\nPS1='ready> '\n");
    fs::write(home.path().join(".zshrc"), settings).expect(".zshrc");
    let shell = format!("env {} ZDOTDIR={} zsh -i", path(), home.path().display());
    let terminal = Terminal::start(&simulation, &shell);
    terminal.shows("ready>");
    terminal.press("steliactl stat");
    terminal.press("Tab");
    terminal.shows("steliactl status");
    terminal.press("C-u");
    terminal.press(&format!("steliactl show {}", &VM[..4]));
    terminal.press("Tab");
    terminal.shows(&format!("steliactl show {VM}"));
}
