//! Long output goes through a pager when a person reads it, by the rules of systemd's tools (systemctl(1), "Environment").

use std::env::var_os;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::{Command, Stdio};

use tokio::signal::unix::{SignalKind, signal};

/// `less`'s options unless `SYSTEMD_LESS` has others: quit if it fits, keep colours and what is on the screen, chop
/// long lines, verbose prompt, exit on interrupt.
const LESS: &str = "FRSXMK";

/// As [`write`], on a terminal through a pager.
pub(crate) fn print(text: &str) -> io::Result<bool> {
    if !text.is_empty() && io::stdout().is_terminal() && page(text) {
        return Ok(true);
    }
    write(text)
}

/// Writes a text to standard output at once; returns whether that still has a reader, as not for `steliactl list | head`.
pub(crate) fn write(text: &str) -> io::Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// Runs the pager to its end; `false` where none is asked for, or it could not be started. `$SYSTEMD_PAGER` comes before `$PAGER`; empty
/// or `cat` means none. Needs tokio's runtime.
fn page(text: &str) -> bool {
    let named = var_os("SYSTEMD_PAGER").or_else(|| var_os("PAGER"));
    let line = named.map_or_else(|| "less".to_owned(), |named| named.to_string_lossy().into_owned());
    let mut words = line.split_whitespace();
    let Some(program) = words.next().filter(|program| *program != "cat") else {
        return false;
    };
    let mut pager = Command::new(program);
    pager.args(words).stdin(Stdio::piped());
    pager.env("LESS", var_os("SYSTEMD_LESS").unwrap_or_else(|| LESS.into()));
    // A user who may run only this command as root (sudo) must not get a shell from the pager.
    if var_os("SUDO_UID").is_some() {
        pager.env("LESSSECURE", "1");
    }
    // Ctrl-C is the pager's, which has the terminal: without this it would be left alone there, and the exit code lost.
    let _caught = signal(SignalKind::interrupt());
    let Ok(mut child) = pager.spawn() else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        // A pager that the user has quit reads no more.
        let _ = stdin.write_all(text.as_bytes());
    }
    let _ = child.wait();
    true
}
