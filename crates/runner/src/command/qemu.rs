//! QEMU's arguments: paused, with a monitor.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::vmm::Release;

/// The arguments with `-S` and `-qmp` added if they were absent.
pub(super) fn paused(given: &[OsString], qmp: &Path) -> (Vec<OsString>, Release) {
    let mut args = given.to_vec();
    let release = defer_migration(&mut args);
    // A guest that arrives by migration executes nothing before the migration has ended, and then has to start by itself.
    if release == Release::Continue && !given.iter().any(|arg| is_option(arg, "S")) {
        args.push("-S".into());
    }
    if !mentions(given, qmp) {
        args.push("-qmp".into());
        args.push(format!("unix:{},server=on,wait=off", escaped(qmp)).into());
    }
    (args, release)
}

/// A migration that begins with QEMU could end before the vCPUs have their CPUs. Therefore a single address is replaced by
/// `-incoming defer`, and is sent by QMP when they have them. Several channels, or one in JSON, are not changed.
fn defer_migration(args: &mut [OsString]) -> Release {
    let options: Vec<usize> = (0..args.len())
        .filter(|at| args.get(*at).is_some_and(|arg| is_option(arg, "incoming")))
        .collect();
    let value = match options[..] {
        [] => return Release::Continue,
        [at] => args.get_mut(at + 1),
        _ => None,
    };
    let Some(value) = value else { return Release::External };
    match value.to_str() {
        Some(uri) if uri != "defer" && !uri.starts_with('{') => {
            let release = Release::Migration(uri.to_owned());
            *value = "defer".into();
            release
        }
        _ => Release::External,
    }
}

/// QEMU accepts one dash or two.
fn is_option(arg: &OsStr, name: &str) -> bool {
    arg.to_str()
        .and_then(|arg| arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')))
        == Some(name)
}

/// Whether the value of a monitor or chardev option has exactly this path.
fn mentions(args: &[OsString], qmp: &Path) -> bool {
    let options = ["qmp", "qmp-pretty", "chardev"];
    args.windows(2).any(|pair| match pair {
        [option, value] => {
            options.iter().any(|name| is_option(option, name))
                && names_path(&value.to_string_lossy(), &qmp.to_string_lossy())
        }
        _ => false,
    })
}

fn names_path(value: &str, path: &str) -> bool {
    // In QEMU's option values a comma is doubled; no path has a NUL.
    value.replace(",,", "\0").split(',').any(|part| {
        let part = part.replace('\0', ",");
        part.strip_prefix("unix:").or_else(|| part.strip_prefix("path=")) == Some(path)
    })
}

fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::VmmCommand;
    use crate::vmm::VmmKind;
    use rstest::rstest;

    fn complete(args: &[&str], qmp: &str) -> VmmCommand {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        crate::command::complete(VmmKind::Qemu, &args, Path::new(qmp)).unwrap()
    }

    #[test]
    fn a_plain_command_is_started_paused_with_a_monitor() {
        let command = complete(&["qemu", "-m", "1G"], "/run/q");
        assert_eq!(command.program, "qemu");
        assert_eq!(
            command.args,
            ["-m", "1G", "-S", "-qmp", "unix:/run/q,server=on,wait=off"]
        );
        assert_eq!(command.release, Release::Continue);
    }

    #[rstest]
    #[case(&["qemu", "-S"])]
    #[case(&["qemu", "--S"])]
    fn pausing_is_asked_for_once(#[case] args: &[&str]) {
        let added = &complete(args, "/q").args[1..];
        assert_eq!(added, ["-qmp", "unix:/q,server=on,wait=off"]);
    }

    #[rstest]
    #[case(&["qemu", "-S", "-qmp", "unix:/q,server=on,wait=off"])]
    #[case(&["qemu", "-S", "--qmp", "unix:/q,server"])]
    #[case(&["qemu", "-S", "-chardev", "socket,id=m,path=/q,server=on,wait=off", "-mon", "chardev=m,mode=control"])]
    fn a_monitor_that_is_there_is_used(#[case] args: &[&str]) {
        assert_eq!(complete(args, "/q").args, args[1..]);
    }

    #[rstest]
    #[case(&["qemu", "-S", "-qmp", "unix:/q2,server=on,wait=off"])]
    #[case(&["qemu", "-S", "-drive", "path=/q"])]
    #[case(&["qemu", "-S", "-monitor", "unix:/q,server=on"])]
    fn another_path_or_option_is_no_monitor(#[case] args: &[&str]) {
        assert_eq!(complete(args, "/q").args.last().unwrap(), "unix:/q,server=on,wait=off");
    }

    #[test]
    fn commas_in_the_path_are_doubled_and_found_again() {
        assert_eq!(
            complete(&["qemu"], "/a,b").args.last().unwrap(),
            "unix:/a,,b,server=on,wait=off"
        );
        assert!(names_path("unix:/a,,b,server=on", "/a,b"));
    }

    #[rstest]
    #[case(&["qemu", "-incoming", "defer"])]
    #[case(&["qemu", "--incoming", "{\"channel-type\":\"main\"}"])]
    #[case(&["qemu", "-incoming", "tcp:0:1", "-incoming", "{}"])]
    #[case(&["qemu", "-incoming"])]
    fn a_migration_that_others_drive_is_theirs(#[case] args: &[&str]) {
        let command = complete(args, "/q");
        assert_eq!(command.release, Release::External);
        assert_eq!(command.args[..args.len() - 1], args[1..]);
        assert!(!command.args.iter().any(|arg| arg == "-S"));
    }

    #[test]
    fn a_migration_with_an_address_waits_for_the_vcpus() {
        let command = complete(&["qemu", "--incoming", "tcp:[::]:4444", "-m", "1G"], "/q");
        assert_eq!(command.release, Release::Migration("tcp:[::]:4444".into()));
        assert_eq!(command.args[..4], ["--incoming", "defer", "-m", "1G"]);
    }

    #[test]
    fn nothing_is_no_command() {
        let error = crate::command::complete(VmmKind::Qemu, &[], Path::new("/q")).unwrap_err();
        assert_eq!(error.to_string(), "no QEMU is given");
    }
}
