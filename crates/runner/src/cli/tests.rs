use std::path::Path;

use super::*;

fn run(args: &[&str]) -> Result<RunOptions, clap::Error> {
    let cli = Cli::try_parse_from(["stelia-runner", "run"].iter().chain(args))?;
    match cli.command {
        Command::Run(options) => Ok(options),
        other => panic!("{other:?}"),
    }
}

#[test]
fn seconds_come_with_and_without_unit() {
    assert_eq!(seconds("25"), Ok(Duration::from_secs(25)));
    assert_eq!(seconds("25s"), Ok(Duration::from_secs(25)));
    for wrong in ["", "s", "-1", "1m", "1.5"] {
        assert!(seconds(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn qemu_keeps_its_own_options_behind_the_dashes() {
    let options = run(&["--qmp", "/q", "--", "qemu", "-S", "--help"]).unwrap();
    assert_eq!(options.program, ["qemu", "-S", "--help"]);
    let common = options.common;
    assert_eq!(common.socket.to_str(), Some(RUNNER_SOCKET));
    assert_eq!((common.grace.as_secs(), common.register_timeout.as_secs()), (25, 60));
    assert_eq!(common.anchor.first().unwrap(), "/proc/self/exe");
    assert!(common.require_isolation);
}

#[test]
fn qemu_and_qmp_are_needed() {
    assert!(run(&["--qmp", "/q"]).is_err());
    assert!(run(&["--", "qemu"]).is_err());
}

#[test]
fn isolation_may_be_waived_and_nothing_in_between() {
    let with = |text: &str| run(&["--qmp", "/q", text, "--", "qemu"]).map(|options| options.common.require_isolation);
    assert!(with("--require-isolation=yes").unwrap());
    assert!(!with("--require-isolation=no").unwrap());
    assert!(with("--require-isolation=maybe").is_err());
}

#[test]
fn several_helpers_are_several_options() {
    let helpers = ["--helper", "name=a,command=x y", "--helper=name=b,command=z,1"];
    let options = run(&[&["--qmp", "/q"], &helpers[..], &["--", "qemu"]].concat()).unwrap();
    let commands: Vec<_> = options.helper.iter().map(|helper| helper.command.join(" ")).collect();
    assert_eq!(commands, ["x y", "z,1"]);
    let wrong = run(&["--qmp", "/q", "--helper", "name=a", "--", "qemu"]).unwrap_err();
    assert!(wrong.to_string().contains("command= is missing"), "{wrong}");
}

#[test]
fn the_socket_lies_beside_the_qmp_socket_unless_told_otherwise() {
    let at = |given: Option<&str>, qmp: Option<&str>| state_directory(given.map(Path::new), qmp.map(Path::new));
    assert_eq!(at(None, Some("/run/vm/qmp")), Some("/run/vm".into()));
    assert_eq!(at(None, Some("qmp")), Some(".".into()));
    assert_eq!(at(Some("/state"), Some("/run/qmp")), Some("/state".into()));
    assert_eq!(at(None, None), None);
}

#[test]
fn there_is_one_control_socket() {
    assert!(run(&["--qmp", "/q", "--api-socket", "/a", "--", "qemu"]).is_err());
    let vmm = |args: &[&str]| {
        let options = run(args).unwrap();
        options
            .vmm()
            .map(|(kind, socket)| (kind.name(), socket.display().to_string()))
            .map_err(|error| error.to_string())
    };
    assert_eq!(vmm(&["--qmp", "/q", "--", "start.sh"]), Ok(("QEMU", "/q".into())));
    let api = ["--api-socket", "/a", "--"];
    assert_eq!(
        vmm(&[&api[..], &["/x/firecracker"]].concat()),
        Ok(("Firecracker", "/a".into()))
    );
    let named = ["--vmm", "cloud-hypervisor", "--api-socket", "/a", "--", "sh"];
    assert_eq!(vmm(&named), Ok(("Cloud Hypervisor", "/a".into())));
    assert!(vmm(&[&api[..], &["sh"]].concat()).is_err());
}

#[test]
fn a_descriptor_that_is_not_understood_is_a_usage_error() {
    let error = run(&["--qmp", "/q", "--fd", "net=tap", "--", "qemu"]).unwrap_err();
    assert!(error.to_string().contains("not an absolute path"), "{error}");
}

#[test]
fn a_probe_finds_the_runner_beside_the_api_socket_too() {
    let cli = Cli::try_parse_from(["stelia-runner", "probe", "state", "--api-socket", "/run/vm/api"]).unwrap();
    let Command::Probe(options) = cli.command else {
        panic!("not probe")
    };
    assert_eq!(options.place.directory(), Some("/run/vm".into()));
}

#[test]
fn a_probe_says_which_runner() {
    assert!(Cli::try_parse_from(["stelia-runner", "probe"]).is_err());
    let cli = Cli::try_parse_from(["stelia-runner", "probe", "liveness", "--qmp", "/run/qmp"]).unwrap();
    let Command::Probe(options) = cli.command else {
        panic!("not probe")
    };
    assert_eq!(
        (options.what, options.place.directory()),
        (ProbeKind::Liveness, Some("/run".into()))
    );
}
