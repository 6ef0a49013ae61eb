//! steliactl in a real terminal: tmux, on a socket of its own.

use std::time::{Duration, Instant};

use super::*;

/// A terminal of 100 columns and 30 rows; it ends with this value.
pub(crate) struct Terminal {
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Terminal {
    /// Runs a shell's command line in it. The command must print that it ended, because the terminal closes with its
    /// last program.
    pub(crate) fn start(simulation: &Simulation, command: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let terminal = Self {
            socket: directory.path().join("tmux"),
            _directory: directory,
        };
        let address = format!("DBUS_SYSTEM_BUS_ADDRESS={}", simulation.address);
        let size = ["-x", "100", "-y", "30"];
        let line = format!("{command}; echo exit $?; stty -a; exec sleep 600");
        let start = [
            &["-f", "/dev/null", "new-session", "-d"],
            &size[..],
            &["env", &address, "sh", "-c", &line],
        ];
        terminal.tmux(&start.concat());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let out = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(arguments)
            .output()
            .expect("tmux");
        assert!(out.status.success(), "{arguments:?}: {out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Waits until the screen has the text; returns the screen.
    pub(crate) fn shows(&self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(text) {
                return screen;
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{text:?} is not in\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn press(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// The program succeeded and the terminal is restored: lines are edited and echoed, the screen is the shell's.
    fn is_sane(&self) {
        let screen = self.shows("-echoprt");
        let settings: Vec<&str> = screen.split_whitespace().collect();
        assert!(screen.contains("exit 0") && !screen.contains("UTIL%"), "{screen}");
        assert!(settings.contains(&"icanon") && settings.contains(&"echo"), "{screen}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}

const CTL: &str = env!("CARGO_BIN_EXE_steliactl-simulated");

#[test]
fn top_is_driven_by_keys_and_leaves_the_terminal_as_it_was() {
    let mut simulation = Simulation::start(&scenario(""));
    let files = simulation.files();
    let terminal = Terminal::start(
        &simulation,
        &format!("{CTL} --root={} top -d 0.3", files.path().display()),
    );
    let screen = terminal.shows("UTIL%");
    assert!(screen.contains(VM) && !screen.contains("vcpu 1"), "{screen}");
    // Why a VM is not isolated has a note.
    assert!(
        screen.contains("waiting") && screen.contains("no vCPUs yet"),
        "{screen}"
    );
    // There are rates from the second sample on.
    terminal.shows("0.0");
    terminal.press("Down");
    terminal.press("Enter");
    terminal.shows("vcpu 1");
    terminal.press("s");
    terminal.shows("by UTIL%");
    terminal.press("h");
    terminal.shows("the guest's steal");
    terminal.press("h");
    terminal.shows(VM);
    // The last values stay, with the reason.
    simulation.stop_daemon();
    assert!(terminal.shows("steliad is not running").contains(VM));
    simulation.start_daemon();
    terminal.press("q");
    terminal.is_sane();
}

#[test]
fn a_signal_ends_top_and_the_terminal_is_as_it_was() {
    let simulation = Simulation::start(&scenario(""));
    let terminal = Terminal::start(&simulation, &format!("{CTL} top"));
    terminal.shows("UTIL%");
    let shell = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
    let shell = shell.trim();
    let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).expect("children");
    let top: i32 = children.trim().parse().expect("one child");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(top), nix::sys::signal::Signal::SIGTERM).expect("kill");
    terminal.is_sane();
}
