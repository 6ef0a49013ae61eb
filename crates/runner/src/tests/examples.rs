//! The runners of `docs/examples`, as authors of runners would copy them, with the same fake daemon and QEMU.

use std::path::{Path, PathBuf};

use rstest::rstest;

use super::*;

/// The language of a runner.
#[derive(Debug, Clone, Copy)]
enum Language {
    Python,
    Go,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The command that starts the runner; `folder` is for what has to be built.
fn program(language: Language, folder: &Path) -> Vec<PathBuf> {
    match language {
        // The distribution's interpreter, which has the distribution's jeepney.
        Language::Python => vec!["/usr/bin/python3".into(), repository().join("docs/examples/runner.py")],
        Language::Go => {
            let program = folder.join("runner");
            let exe = std::env::current_exe().unwrap();
            let built = Command::new(repository().join("packaging/tools/example-runner"))
                .arg(&program)
                .env("GOCACHE", exe.with_file_name("go-cache"))
                .output()
                .unwrap();
            assert!(built.status.success(), "make setup installs Go: {built:?}");
            vec![program]
        }
    }
}

/// A runner of this language between a daemon and a QEMU.
fn bench(language: Language, behaviour: Behaviour) -> Bench {
    bench_of(language, Some(behaviour), QEMU)
}

/// The same with this shell script as QEMU, and perhaps without a daemon.
fn bench_of(language: Language, daemon: Option<Behaviour>, qemu: &str) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let calls = Calls::default();
    let socket = dir.path().join("socket");
    if let Some(behaviour) = daemon {
        fakes::daemon(&socket, behaviour, calls.clone());
    }
    let program = program(language, dir.path());
    let runner = Command::new(&program[0])
        .args(&program[1..])
        .arg(dir.path().join("qmp"))
        .args(["sh", "-c", qemu, "qemu"])
        .env(DIR, dir.path())
        .env("STELIA_SOCKET", socket)
        .env("STELIA_TEST_EXE", std::env::current_exe().unwrap())
        .env("STELIA_TEST_QEMU", "")
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    Bench { dir, runner, calls }
}

#[rstest]
#[tokio::test]
async fn the_guest_runs_once_its_vcpus_are_isolated_and_powers_down_on_sigterm(
    #[values(Language::Python, Language::Go)] language: Language,
) {
    let mut bench = bench(language, Behaviour::default());
    bench.logged("guest running, isolated").await;
    assert_eq!(bench.calls.names(), [REGISTER, ATTACH]);
    assert_eq!(bench.orders(), "cont");
    let given = bench.read("given");
    assert!(given.starts_with("-S -qmp unix:"), "{given}");
    let (anchor, qemu) = (bench.calls.pid("anchor"), bench.calls.pid("qemu"));
    assert!(alive(anchor) && alive(qemu) && anchor != qemu);
    assert_eq!(bench.terminated().await, 7);
    assert_eq!(bench.orders(), "cont system_powerdown");
}

#[rstest]
#[tokio::test]
async fn without_isolation_no_guest_runs(#[values(Language::Python, Language::Go)] language: Language) {
    let mut refused = bench(language, Behaviour::refusing());
    assert_eq!(refused.exit_code().await, i32::from(crate::exit_codes::REFUSED));
    let log = refused.read("log");
    assert!(log.contains("pod x has no exclusive CPUs"), "{log}");
    assert!(!refused.dir.path().join("commands").exists());

    let floating = Behaviour {
        state: Some("waiting"),
        ..Behaviour::default()
    };
    let mut bench = bench(language, floating);
    assert_ne!(bench.exit_code().await, 0, "{}", bench.read("log"));
    assert_eq!(bench.orders(), "", "{}", bench.read("log"));
}

const REGISTER: &str = "RegisterInstance '' ''";
const ATTACH: &str = "AttachVcpus 0:7000:core-id=0 1:7001:core-id=1";

/// The page's table of errors: what is repeated, and what the daemon is asked.
#[rstest]
#[case::busy(Behaviour { busy: 2, ..Behaviour::default() }, &[REGISTER, REGISTER, REGISTER, ATTACH])]
#[case::conflict(Behaviour { failing_attaches: 1, ..Behaviour::default() }, &[REGISTER, ATTACH, REGISTER, ATTACH])]
#[case::restart(Behaviour { lost_attaches: 1, ..Behaviour::default() }, &[REGISTER, ATTACH, "hung up", REGISTER, ATTACH])]
#[tokio::test]
async fn the_guest_runs_once_what_the_page_repeats_has_succeeded(
    #[case] behaviour: Behaviour,
    #[case] asked: &[&str],
    #[values(Language::Python, Language::Go)] language: Language,
) {
    let mut bench = bench(language, behaviour);
    bench.logged("guest running, isolated").await;
    assert_eq!(bench.calls.names(), asked, "{}", bench.read("log"));
    assert_eq!(bench.orders(), "cont");
    assert_eq!(bench.terminated().await, 7);
}

#[rstest]
#[tokio::test]
async fn a_qemu_that_ends_at_once_ends_the_runner_with_its_code(
    #[values(Language::Python, Language::Go)] language: Language,
) {
    let began = Instant::now();
    let mut bench = bench_of(language, Some(Behaviour::default()), "exit 9");
    assert_eq!(bench.exit_code().await, 9, "{}", bench.read("log"));
    // Building the runner in Go is part of it.
    assert!(matches!(language, Language::Go) || began.elapsed() < Duration::from_secs(5));
}

#[rstest]
#[tokio::test]
async fn sigterm_ends_the_runner_while_it_waits_for_the_daemon(
    #[values(Language::Python, Language::Go)] language: Language,
) {
    let mut bench = bench_of(language, None, QEMU);
    bench.logged("repeated after").await;
    assert_eq!(bench.terminated().await, 143, "{}", bench.read("log"));
    assert!(!bench.dir.path().join("commands").exists());
}
