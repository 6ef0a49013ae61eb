//! The whole runner as a process of its own, between a fake daemon and a fake QEMU.
//!
//! The runner reaps every child of its process, so it must not share one with other tests: this test executable starts
//! itself again for it (`helper_runner`), and once more as QEMU (`helper_qemu`).

mod api;
mod api_fakes;
mod attach;
mod classes;
mod examples;
mod fakes;
mod helpers;
mod memory;
mod policy;
mod resize;
mod run;
mod threads;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::cli::{Cli, Command as Subcommand};
use super::state::RunnerState;
use super::status_socket::SOCKET;
use fakes::{Behaviour, Calls};

const DIR: &str = "STELIA_TEST_DIR";
const ARGS: &str = "STELIA_TEST_ARGUMENTS";
/// The sleeper is orphaned at once, as a helper that a start script left behind.
const QEMU: &str = "(sleep 0.2 &); export STELIA_TEST_GIVEN=\"$*\"; exec \"$STELIA_TEST_EXE\" tests::helper_qemu --exact --ignored --nocapture";

#[test]
#[ignore = "the other tests start it as a process"]
fn helper_runner() {
    let Ok(arguments) = std::env::var(ARGS) else { return };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|e| panic!("{e}"));
    super::log::start(cli.log_format);
    let anchor: Vec<_> = ["sleep", "1000"].map(Into::into).into();
    let code = match cli.command {
        Subcommand::Run(mut options) => {
            options.common.anchor = anchor;
            super::block_on(super::run::run(options))
        }
        Subcommand::Attach(mut options) => {
            options.common.anchor = anchor;
            super::block_on(super::attach::run(options))
        }
        other => panic!("{other:?}"),
    };
    std::process::exit(code.into());
}

#[test]
#[ignore = "the other tests start it as a process"]
fn helper_qemu() {
    if let (Some(dir), Ok(given)) = (std::env::var_os(DIR), std::env::var("STELIA_TEST_GIVEN")) {
        std::fs::write(Path::new(&dir).join("given"), given).unwrap();
    }
    match (std::env::var_os(DIR), std::env::var("STELIA_TEST_QEMU").as_deref()) {
        (Some(_), Ok("named")) => fakes::named(),
        (Some(dir), Ok(how)) if how.starts_with("firecracker") || how.starts_with("cloud-hypervisor") => {
            api_fakes::vmm(dir.as_ref());
        }
        (Some(dir), _) => fakes::qemu(dir.as_ref()),
        _ => {}
    }
}

struct Bench {
    dir: TempDir,
    runner: Child,
    calls: Calls,
}

/// What a test needs.
#[derive(Default)]
struct Setup<'a> {
    /// The command that the runner is started by.
    wrapper: &'a [&'a str],
    daemon: Option<Behaviour>,
    /// How QEMU behaves, and its arguments.
    qemu: &'a str,
    args: &'a str,
    /// More options of the runner's; `DIR` in them is the bench's directory.
    options: &'a [&'a str],
    /// Files in that directory.
    files: &'a [(&'a str, &'a str)],
}

impl Bench {
    fn new(daemon: Option<Behaviour>, qemu: &str, args: &str) -> Bench {
        Bench::of(Setup {
            daemon,
            qemu,
            args,
            ..Setup::default()
        })
    }

    /// A runner that starts QEMU.
    fn of(setup: Setup<'_>) -> Bench {
        let mut command = vec!["--", "sh", "-c", QEMU, "qemu"];
        command.extend(setup.args.split_whitespace());
        let options = ["--qmp", "DIR/qmp", "--cpuset", "2-3", "--grace", "1"];
        Bench::started("run", &options, &command, &setup)
    }

    /// A runner whose guest runs.
    async fn running(qemu: &str) -> Bench {
        let bench = Bench::new(Some(Behaviour::default()), qemu, "");
        bench.logged("guest running").await;
        bench
    }

    /// A runner with these options beside these files.
    fn with(options: &[&str], files: &[(&str, &str)]) -> Bench {
        Bench::under(Some(Behaviour::default()), options, files)
    }

    /// The same with this daemon, or without one.
    fn under(daemon: Option<Behaviour>, options: &[&str], files: &[(&str, &str)]) -> Bench {
        Bench::of(Setup {
            daemon,
            options,
            files,
            ..Setup::default()
        })
    }

    fn started(subcommand: &str, options: &[&str], command: &[&str], setup: &Setup<'_>) -> Bench {
        Bench::started_in(tempfile::tempdir().unwrap(), subcommand, options, command, setup)
    }

    fn started_in(dir: TempDir, subcommand: &str, options: &[&str], command: &[&str], setup: &Setup<'_>) -> Bench {
        let calls = Calls::default();
        *calls.cpus.lock().unwrap() = "2-3".into();
        if let Some(behaviour) = &setup.daemon {
            fakes::daemon(&dir.path().join("socket"), behaviour.clone(), calls.clone());
        }
        for (name, text) in setup.files {
            std::fs::write(dir.path().join(name), text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        }
        let runner = spawn(dir.path(), subcommand, options, command, setup);
        Bench { dir, runner, calls }
    }

    /// Starts another runner of the same kind in the same directory, after the end of the first.
    fn restart(&mut self, subcommand: &str, options: &[&str]) {
        self.runner = spawn(self.dir.path(), subcommand, options, &[], &Setup::default());
    }

    /// Put a file where QEMU or a helper looks for it.
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// The runner's state, once `so` is true of it.
    async fn state(&self, so: impl Fn(&RunnerState) -> bool) -> RunnerState {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let told = UnixStream::connect(self.dir.path().join(SOCKET))
                .ok()
                .and_then(|stream| serde_json::from_str(&std::io::read_to_string(stream).ok()?).ok());
            match told {
                Some(state) if so(&state) => return state,
                other => assert!(Instant::now() < deadline, "never so: {other:?}: {}", self.read("log")),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// The commands that QEMU was sent, without queries.
    fn orders(&self) -> String {
        let orders = self.read("commands");
        orders
            .lines()
            .filter(|c| !c.starts_with("query") && *c != "qmp_capabilities")
            .collect::<Vec<_>>()
            .join(" ")
    }

    async fn logged(&self, text: &str) {
        self.until(text, || self.read("log").contains(text)).await;
    }

    /// Waits until this is so.
    async fn until(&self, what: &str, so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !so() {
            let (log, orders, calls) = (self.read("log"), self.orders(), self.calls.names());
            assert!(Instant::now() < deadline, "never {what:?}: {orders} {calls:?} {log}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A process ends.
    async fn dies(&self, pid: i32) {
        self.until("dead", || !alive(pid)).await;
    }

    /// The daemon says that the instance has another state; empty: there is none any more; `None`: that of its behaviour.
    fn becomes(&self, state: Option<&str>) {
        *self.calls.state.lock().unwrap() = state.map(str::to_owned);
        self.calls.tell.notify_one();
    }

    /// The daemon says that the instance has other CPUs.
    fn give(&self, cpus: &str) {
        *self.calls.cpus.lock().unwrap() = cpus.into();
        self.calls.tell.notify_one();
    }

    /// The pod is terminated. Returns the exit code.
    async fn terminated(&mut self) -> i32 {
        self.signal(Signal::TERM);
        self.exit_code().await
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.runner), signal).unwrap();
    }

    async fn exit_code(&mut self) -> i32 {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.runner.try_wait().unwrap() {
                return status.code().unwrap();
            }
            assert!(Instant::now() < deadline, "never ended: {}", self.read("log"));
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let children = children(self.runner.id());
        let _ = self.runner.kill();
        let _ = self.runner.wait();
        // Outside a PID namespace QEMU and the anchor outlive the runner, and a QEMU that was never handed over is
        // known to the runner alone.
        let handed_over = self.calls.pids();
        for pid in handed_over.into_iter().chain(children).filter(|pid| alive(*pid)) {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }
}

fn spawn(dir: &Path, subcommand: &str, options: &[&str], command: &[&str], setup: &Setup<'_>) -> Child {
    let arguments: Vec<String> = [
        "stelia-runner",
        subcommand,
        "--socket",
        "DIR/socket",
        "--register-timeout",
        "2",
    ]
    .iter()
    .chain(options)
    .chain(setup.options)
    .map(|option| option.replace("DIR", dir.to_str().unwrap()))
    .chain(command.iter().map(ToString::to_string))
    .collect();
    let exe = std::env::current_exe().unwrap();
    let mut wrapped: Vec<_> = setup.wrapper.iter().map(std::ffi::OsString::from).collect();
    wrapped.push(exe.clone().into());
    Command::new(&wrapped[0])
        .args(&wrapped[1..])
        .args(["tests::helper_runner", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(ARGS, serde_json::to_string(&arguments).unwrap())
        .env("STELIA_TEST_EXE", &exe)
        .env("STELIA_TEST_QEMU", setup.qemu)
        .env("RUST_LOG", "info,stelia_runner=debug")
        .env_remove("STELIA_STATE_DIR")
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap()
}

fn children(pid: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

fn alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:") && !status.contains("State:\tZ")
}
