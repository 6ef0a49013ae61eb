//! A bus, and a daemon on it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use stelia_api::{BUS_NAME, MANAGER_PATH};
use tokio::sync::watch;
use zbus::connection::Builder;
use zbus::{Connection, interface};

/// It ends with this value, and can be started again at the same address.
pub(super) struct Bus {
    process: Child,
    pub(super) address: String,
}

fn start(address: &str) -> Child {
    let mut bus = Command::new("dbus-daemon");
    bus.args(["--session", "--nofork", "--print-address", "--address", address]);
    let mut process = bus.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(!line.is_empty(), "dbus-daemon on {address}");
    process
}

impl Bus {
    pub(super) fn start(folder: &Path) -> Self {
        let address = format!("unix:path={}", folder.join("bus").display());
        Self {
            process: start(&address),
            address,
        }
    }

    pub(super) fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let path = self.address.strip_prefix("unix:path=").unwrap();
        let _ = std::fs::remove_file(path);
    }

    pub(super) fn start_again(&mut self) {
        self.process = start(&self.address);
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Clone)]
struct State {
    problem: Arc<Mutex<String>>,
    capacity: Arc<Mutex<u32>>,
    hangs: watch::Receiver<bool>,
}

struct Manager(State);

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    #[zbus(property)]
    async fn admission_problem(&self) -> String {
        let mut hangs = self.0.hangs.clone();
        let _ = hangs.wait_for(|hangs| !hangs).await;
        self.0.problem.lock().unwrap().clone()
    }

    #[zbus(property)]
    fn vm_capacity(&self) -> u32 {
        *self.0.capacity.lock().unwrap()
    }
}

/// A daemon that only says whether it admits VMs, and for how many there is room: 3 at first.
pub(super) struct Daemon {
    connection: Connection,
    state: State,
    hangs: watch::Sender<bool>,
}

impl Daemon {
    pub(super) async fn start(bus: &Bus, problem: &str) -> Self {
        let (hangs, receiver) = watch::channel(false);
        let state = State {
            problem: Arc::new(Mutex::new(problem.to_owned())),
            capacity: Arc::new(Mutex::new(3)),
            hangs: receiver,
        };
        let builder = Builder::address(bus.address.as_str()).serve_at(MANAGER_PATH, Manager(state.clone()));
        let connection = builder.name(BUS_NAME).build().await.unwrap();
        Self {
            connection,
            state,
            hangs,
        }
    }

    pub(super) async fn set_problem(&self, problem: &str) {
        *self.state.problem.lock().unwrap() = problem.to_owned();
        let server = self.connection.object_server();
        let object = server.interface::<_, Manager>(MANAGER_PATH).await.unwrap();
        object
            .get()
            .await
            .admission_problem_changed(object.signal_emitter())
            .await
            .unwrap();
    }

    /// From now on it answers nothing, or again.
    pub(super) fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    pub(super) async fn set_capacity(&self, capacity: u32) {
        *self.state.capacity.lock().unwrap() = capacity;
        let server = self.connection.object_server();
        let object = server.interface::<_, Manager>(MANAGER_PATH).await.unwrap();
        object
            .get()
            .await
            .vm_capacity_changed(object.signal_emitter())
            .await
            .unwrap();
    }

    pub(super) async fn stop(self) {
        self.connection.close().await.unwrap();
    }
}
