//! The runtimes of the containers.

use std::os::unix::fs::PermissionsExt;

use super::super::crun::Runtimes;
use super::*;

/// As Debian 13's prints it.
const OLD: &str = "crun version 1.21\ncommit: 10269840aa07fb7e6b7e1acff6198692d8ff5c88\nspec: 1.0.0\n";

fn check(cruns: &[(&str, Result<&str, &str>)], unknown: (usize, usize)) -> Check {
    let own = |said: &Result<&str, &str>| said.map(str::to_owned).map_err(str::to_owned);
    let runtimes = Runtimes {
        cruns: cruns.iter().map(|(path, said)| (path.into(), own(said))).collect(),
        unknown,
    };
    let all = checks(&Facts { runtimes, ..fit() });
    all.into_iter().find(|check| check.check == "crun").unwrap()
}

#[rstest]
#[case(OLD, Verdict::Warning)]
#[case("crun version 0.17.110-1f21\n", Verdict::Warning)]
#[case("crun version 1.22\n", Verdict::Ok)]
#[case("crun version 1.22.0.0.0.8-3a4b\n", Verdict::Ok)]
#[case("crun version 1.27-dirty", Verdict::Ok)]
#[case("crun version 2.0\n", Verdict::Ok)]
#[case("runc version 1.1.15\n", Verdict::Unknown)]
#[case("crun version \n", Verdict::Unknown)]
#[case("", Verdict::Unknown)]
fn a_crun_before_1_22_is_told_by_what_it_prints(#[case] printed: &str, #[case] expected: Verdict) {
    let check = check(&[("/usr/bin/crun", Ok(printed))], (0, 1));
    assert_eq!(check.verdict, expected, "{check:?}");
    assert_eq!(check.cure.is_empty(), expected != Verdict::Warning);
    assert!(check.found.contains("/usr/bin/crun"), "{check:?}");
}

#[test]
fn an_old_one_beside_a_new_one_is_told_and_what_is_not_known_is_not_said_to_be_right() {
    let both = [
        ("/opt/bin/crun", Ok("crun version 1.27")),
        ("/usr/bin/crun", Ok("crun version 1.21")),
    ];
    let old = check(&both, (3, 7));
    assert_eq!(old.verdict, Verdict::Warning);
    assert!(old.found.starts_with("crun 1.21 (/usr/bin/crun):"), "{old:?}");
    let failed = check(&[("/usr/bin/crun", Err("run it: no such file"))], (0, 1));
    assert_eq!(
        (failed.verdict, failed.found.as_str()),
        (Verdict::Unknown, "/usr/bin/crun: run it: no such file")
    );
    let unread = check(&both[..1], (3, 7));
    assert_eq!(
        (unread.verdict, unread.found.as_str()),
        (Verdict::Unknown, "not known of 3 of 7 containers; run it as root")
    );
    assert_eq!(check(&[], (0, 7)).verdict, Verdict::Ok);
}

#[test]
fn each_program_that_a_running_container_has_is_asked_once() {
    let root = tempfile::tempdir().unwrap();
    let file = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (number, options, state) in [
        (1, r#"{"binary_name":"/usr/bin/crun"}"#, "status"),
        (2, r#"{"binary_name":"/usr/bin/crun"}"#, "status"),
        (3, "{}", "state.json"),
        (4, "{}", "gone"),
    ] {
        let id = format!("{number:064x}");
        let bundle = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}");
        file(&format!("{bundle}/config.json"), "{}");
        file(&format!("{bundle}/options.json"), options);
        file(&format!("run/containerd/runc/k8s.io/{id}/{state}"), "{}");
        let pod = POD.replace('-', "_");
        let cgroup = format!("sys/fs/cgroup/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{id}.scope");
        file(&format!("{cgroup}/cgroup.procs"), "");
    }
    for program in ["usr/bin/crun", "usr/bin/runc"] {
        file(program, "");
        fs::set_permissions(root.path().join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let asked = std::cell::RefCell::new(Vec::new());
    let read = Runtimes::read(root.path(), |program| {
        asked.borrow_mut().push(program.to_owned());
        Ok(OLD.to_owned())
    });
    assert_eq!(asked.into_inner(), [Path::new("/usr/bin/crun")]);
    assert_eq!((read.cruns.len(), read.unknown), (1, (1, 4)));
}
