//! Long output goes through a pager when a person reads it, by the rules of systemd's tools (systemctl(1), "Environment").

use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::{Command, Stdio};

/// Used when no variable names another.
const DEFAULT: &str = "less";
/// `less`'s options unless `SYSTEMD_LESS` has others: quit if it fits, keep colours and what is on the screen, chop
/// long lines, verbose prompt, exit on interrupt.
const LESS: &str = "FRSXMK";

/// The pager's command line; `None`: print directly. `$SYSTEMD_PAGER` comes before `$PAGER`; empty or `cat` means no
/// pager.
fn command(variable: impl Fn(&str) -> Option<OsString>) -> Option<Vec<String>> {
    let named = variable("SYSTEMD_PAGER").or_else(|| variable("PAGER"));
    let Some(named) = named else {
        return Some(vec![DEFAULT.to_owned()]);
    };
    let words: Vec<String> = named.to_string_lossy().split_whitespace().map(str::to_owned).collect();
    match words.first().map(String::as_str) {
        None | Some("cat") => None,
        Some(_) => Some(words),
    }
}

/// Whether a text has more lines than the terminal.
fn is_long(text: &str, rows: Option<usize>) -> bool {
    rows.is_some_and(|rows| text.lines().count() >= rows)
}

/// The terminal's rows; `None` where standard output is not a terminal.
fn rows() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}

/// Prints a text to standard output, through a pager where one is wanted.
///
/// # Errors
/// Standard output cannot be written; a reader that closed the pipe is not an error.
pub(crate) fn print(text: &str, wanted: bool) -> io::Result<()> {
    if wanted
        && is_long(text, rows())
        && let Some(words) = command(|name| std::env::var_os(name))
        && page(text, &words)
    {
        return Ok(());
    }
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // `steliactl list | head`
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Runs the pager to its end; `false` where it could not be started.
fn page(text: &str, words: &[String]) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    // Ctrl-C is for the pager: with a handler here (which the child does not inherit) it does not end this program and
    // leave the pager without its terminal.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _interrupt = runtime.as_ref().ok().and_then(|runtime| {
        let _inside = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).ok()
    });
    let mut pager = Command::new(program);
    pager.args(arguments).stdin(Stdio::piped());
    let less = std::env::var_os("SYSTEMD_LESS").unwrap_or_else(|| LESS.into());
    pager.env("LESS", less);
    if let Some(charset) = std::env::var_os("SYSTEMD_LESSCHARSET") {
        pager.env("LESSCHARSET", charset);
    }
    // A user who may run only this command as root (sudo) must not get a shell from the pager.
    if std::env::var_os("SUDO_UID").is_some() {
        pager.env("LESSSECURE", "1");
    }
    let Ok(mut child) = pager.spawn() else {
        return false;
    };
    if let Some(mut stdin) = child.stdin.take() {
        // A pager that the user has quit reads no more.
        let _ = stdin.write_all(text.as_bytes());
    }
    let _ = child.wait();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Vec<String>> {
        command(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_variables_name_the_pager_systemds_own_first() {
        assert_eq!(of(&[]).unwrap(), ["less"]);
        assert_eq!(of(&[("PAGER", "most")]).unwrap(), ["most"]);
        assert_eq!(
            of(&[("PAGER", "most"), ("SYSTEMD_PAGER", "less -N")]).unwrap(),
            ["less", "-N"]
        );
    }

    #[test]
    fn empty_and_cat_are_no_pager() {
        assert_eq!(of(&[("PAGER", "most"), ("SYSTEMD_PAGER", "")]), None);
        assert_eq!(of(&[("PAGER", "cat")]), None);
    }

    #[test]
    fn what_fits_and_what_no_terminal_reads_needs_none() {
        // The last row is for the pager's prompt.
        assert!(is_long("a\nb\nc\n", Some(3)) && !is_long("a\nb\n", Some(3)));
        assert!(!is_long("a\nb\nc\n", None));
    }

    #[test]
    fn a_pager_that_cannot_start_is_none() {
        assert!(!page("a\n", &["/nonexistent/pager".to_owned()]));
        assert!(page("a\n", &["true".to_owned()]));
    }
}
