//! `-H`: the same command on another host, through ssh.
//!
//! systemd's tools bridge the bus alone. Here threads, counters and kubelet's files are read beside it, from /proc, /sys and
//! the disk, so that the whole command must run there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::shared::daemon::Failure;

/// Where to run: `[USER@]HOST[:PORT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    /// An IPv6 address with a port is in brackets.
    ///
    /// # Errors
    /// What ssh could take for an option, or no host.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                let number = port.parse().ok().filter(|port| *port > 0);
                (name, Some(number.ok_or_else(|| format!("{port:?} is not a port"))?))
            }
            _ => (text, None),
        };
        let (user, host) = match name.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, name),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let unfit = |part: &str| {
            part.is_empty() || part.starts_with('-') || part.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        if unfit(host) || user.is_some_and(unfit) {
            return Err("expected [USER@]HOST[:PORT]".to_owned());
        }
        let name = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
        Ok(Self { name, port })
    }
}

/// Replaces this program by ssh, whose exit code is the remote program's, or 255 where ssh itself failed. With `terminal` the
/// remote program has one.
pub(crate) fn run(host: &Host, terminal: bool) -> Failure {
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some(arguments) = without_host(given) else {
        return Failure::Usage("write -H HOST apart from other options".to_owned());
    };
    let cause = Command::new("ssh").args(ssh(host, terminal, &arguments)).exec();
    Failure::Other(format!("run ssh: {cause}"))
}

/// ssh's arguments. `--` ends its options.
fn ssh(host: &Host, terminal: bool, arguments: &[OsString]) -> Vec<OsString> {
    let flags = if terminal { "-xt" } else { "-xT" };
    let port = host.port.map(|port| ["-p".to_owned(), port.to_string()]);
    let options = [flags.to_owned()].into_iter().chain(port.into_iter().flatten());
    let ends = ["--".to_owned(), host.name.clone(), "steliactl".to_owned()];
    let options = options.chain(ends).map(OsString::from);
    options.chain(arguments.iter().map(|one| quoted(one))).collect()
}

/// As the remote shell reads it: ssh joins the arguments with blanks and hands them to the user's shell. No argument holds a
/// NUL, which is all that cannot be quoted.
fn quoted(argument: &OsStr) -> OsString {
    let quoted = shlex::bytes::try_quote(argument.as_bytes());
    quoted.map_or_else(
        |_| argument.to_owned(),
        |quoted| OsString::from_vec(quoted.into_owned()),
    )
}

/// The command line without the host; `None` where it is part of a cluster of short options.
fn without_host(arguments: Vec<OsString>) -> Option<Vec<OsString>> {
    let mut kept = Vec::new();
    let mut found = false;
    let mut arguments = arguments.into_iter();
    while let Some(one) = arguments.next() {
        let bytes = one.as_bytes();
        match bytes {
            b"--" => {
                kept.push(one);
                kept.extend(arguments);
                break;
            }
            b"-H" | b"--host" => {
                arguments.next();
                found = true;
            }
            _ if bytes.starts_with(b"-H") || bytes.starts_with(b"--host=") => found = true,
            _ => kept.push(one),
        }
    }
    found.then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_host_is_a_name_with_a_user_and_a_port() {
        let parsed = |text: &str| Host::parse(text).map(|host| (host.name, host.port));
        let host = |name: &str, port| Ok((name.to_owned(), port));
        assert_eq!(parsed("node-7"), host("node-7", None));
        assert_eq!(parsed("root@node-7:2222"), host("root@node-7", Some(2222)));
        assert_eq!(parsed("fd00::7"), host("fd00::7", None));
        assert_eq!(parsed("root@[fd00::7]:22"), host("root@fd00::7", Some(22)));
        for unfit in [
            "",
            "-oProxyCommand=x",
            "root@",
            "root@-x",
            "a b",
            "node:",
            "node:x",
            "node:0",
            "-x@node",
            "a\nb",
        ] {
            assert!(Host::parse(unfit).is_err(), "{unfit:?}");
        }
    }

    #[test]
    fn the_host_is_taken_out_of_the_command_line_and_nothing_else() {
        for line in [
            &["-H", "a", "list", "--json"][..],
            &["-Ha", "list", "--json"],
            &["--host=a", "list", "--json"],
            &["list", "--host", "a", "--json"],
        ] {
            assert_eq!(without_host(words(line)).unwrap(), words(&["list", "--json"]));
        }
        let line = ["-H", "a", "show", "--", "-H"];
        assert_eq!(without_host(words(&line)).unwrap(), words(&["show", "--", "-H"]));
        assert_eq!(without_host(words(&["top", "-bH", "a"])), None);
    }

    #[test]
    fn ssh_gets_options_and_a_shell_reads_each_argument_as_one() {
        let host = Host::parse("root@node:2222").unwrap();
        let given = words(&["plan", "-c", "a b", "it's", "", "$HOME", "team-a/vm"]);
        assert_eq!(
            ssh(&host, false, &given),
            words(&[
                "-xT",
                "-p",
                "2222",
                "--",
                "root@node",
                "steliactl",
                "plan",
                "-c",
                "'a b'",
                "\"it's\"",
                "''",
                "'$HOME'",
                "team-a/vm"
            ])
        );
        let host = Host::parse("node").unwrap();
        assert_eq!(ssh(&host, true, &[]), words(&["-xt", "--", "node", "steliactl"]));
    }
}
