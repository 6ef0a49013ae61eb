//! What connected runners cost the daemon's memory: `make bench-peers`.
//!
//! The daemon is the real one on the model of a node (`stelia-simulate`), on a private bus. Its anonymous memory is read from
//! the kernel: without any pod; with one registered pod for each peer, whose runner is not connected; and with all of them
//! connected, as a runner is that has registered and waits for its VM's end. The model is in the same process and holds the
//! pods' cgroups and processes too: that is in the second figure and not in the difference between the second and the third.
//! It ends with 1 when a bar is missed.
//!
//! | in the environment | |
//! |---|---|
//! | `STELIA_PEERS` | another number of peers than 512 |
//! | `STELIA_PEERS_PRINT` | set: no bar is held |

use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use stelia_api::client::ManagerProxy;
use zbus::Connection;
use zbus::connection::Builder;

const PEERS: usize = 512;
/// KiB of the daemon without any instance.
const IDLE: f64 = 3072.0;
/// KiB for each further instance with a connected runner.
const EACH: f64 = 16.0;
/// How often all of them connect: what is kept for the first is used again by the next.
const ROUNDS: usize = 3;
/// Memory that is about to be freed is by then.
const SETTLE: Duration = Duration::from_millis(500);
/// CPUs that nobody has for himself.
const SHARED: usize = 4;

/// A program that ends with this value.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> anyhow::Result<(Self, String)> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("its output")?;
        let program = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok((program, line.trim().to_owned()))
    }

    /// Anonymous memory in KiB, and open files.
    fn uses(&self) -> anyhow::Result<(f64, usize)> {
        let process = format!("/proc/{}", self.0.id());
        let status = fs::read_to_string(format!("{process}/status")).context("its status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        let files = fs::read_dir(format!("{process}/fd")).context("its files")?.count();
        Ok((number.context("RssAnon")?.parse()?, files))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn uid(number: usize) -> String {
    format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")
}

/// A node with so many pods of one CPU, each registered, its VM running.
fn scenario(pods: usize) -> anyhow::Result<String> {
    let cores = (SHARED + pods).div_ceil(2);
    let mut text = format!("[host]\nsockets = 2\ncores = {cores}\nthreads = 1\n");
    for number in 0..pods {
        let cpu = SHARED + number;
        write!(
            text,
            "[[pod]]\nuid = \"{}\"\ncpus = \"{cpu}\"\nvcpus = 1\n",
            uid(number)
        )?;
    }
    Ok(text)
}

/// The daemon on a node with so many pods, and where their sockets are.
fn daemon(directory: &Path, bus: &str, pods: usize) -> anyhow::Result<(Program, PathBuf)> {
    let file = directory.join("scenario.toml");
    fs::write(&file, scenario(pods)?).context("scenario.toml")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_stelia-simulate"));
    command.arg(&file).env("DBUS_SYSTEM_BUS_ADDRESS", bus);
    // Hundreds of registrations are no news here.
    command.env("STELIAD_LOG", "warn");
    let (program, line) = Program::start(&mut command).context("steliad")?;
    let sockets = line.strip_prefix("ready: ").with_context(|| line.clone())?;
    sleep(SETTLE);
    Ok((program, sockets.into()))
}

/// A runner after it has asked for its instance: connected, and silent.
async fn peer(sockets: &Path, number: usize) -> anyhow::Result<Connection> {
    let socket = sockets.join(format!("{}.socket", uid(number)));
    let address = format!("unix:path={}", socket.display());
    let connection = Builder::address(address.as_str()).p2p().build().await?;
    let manager = ManagerProxy::new(&connection).await?;
    manager.get_instance("").await?;
    Ok(connection)
}

async fn run() -> anyhow::Result<()> {
    let peers = match std::env::var("STELIA_PEERS") {
        Ok(text) => text.parse()?,
        Err(_) => PEERS,
    };
    let directory = tempfile::tempdir()?;
    let config = directory.path().join("bus.conf");
    let listen = directory.path().join("bus");
    let policy = "<policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/><allow send_type=\"*\"/>\
                  <allow receive_type=\"*\"/></policy>";
    let text = format!(
        "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>{policy}</busconfig>",
        listen.display()
    );
    fs::write(&config, text).context("bus.conf")?;
    let mut command = Command::new("dbus-daemon");
    command.arg(format!("--config-file={}", config.display()));
    let (_bus, address) = Program::start(command.args(["--nofork", "--print-address"])).context("dbus-daemon")?;

    let (idle, _) = daemon(directory.path(), &address, 0)?.0.uses()?;
    let (program, sockets) = daemon(directory.path(), &address, peers)?;
    let (alone, files) = program.uses()?;
    let mut connected = 0.0_f64;
    for _ in 0..ROUNDS {
        let mut connections = Vec::new();
        for number in 0..peers {
            let connection = peer(&sockets, number).await;
            connections.push(connection.with_context(|| format!("peer {number}"))?);
        }
        sleep(SETTLE);
        let (now, open) = program.uses()?;
        ensure!(open >= files + peers, "{} of {peers} are connected", open - files);
        connected = connected.max(now);
    }
    let each = (connected - alone) / peers as f64;
    println!("{:>8.0} KiB the daemon without any instance; bar {IDLE:.0}", idle);
    println!("{alone:>8.0} KiB with {peers} instances, the model's own memory of them included");
    println!("{connected:>8.0} KiB with their {peers} runners connected: {each:.1} KiB each; bar {EACH:.0}");
    if std::env::var_os("STELIA_PEERS_PRINT").is_some() {
        return Ok(());
    }
    ensure!(idle <= IDLE, "{idle} KiB without any instance, more than {IDLE}");
    ensure!(
        each <= EACH,
        "{each:.1} KiB for each connected runner, more than {EACH}"
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run())
}
