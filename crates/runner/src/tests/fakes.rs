//! A fake daemon and a fake QEMU.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use stelia_api::{Error, ErrorKind, NOT_PINNED};
use zbus::connection::Builder;
use zbus::{Fd, OwnedObjectPath, OwnedVariant, Variant, interface};

const INSTANCE: &str = "/io/stelia/Isolation1/instance/x";
type Options = HashMap<String, OwnedVariant>;

/// How the daemon behaves.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// RegisterInstance fails.
    pub refuse: bool,
    /// How many RegisterInstance are answered with Busy first.
    pub busy: usize,
    /// How many AttachVcpus fail first.
    pub failing_attaches: usize,
    /// During how many AttachVcpus the daemon restarts.
    pub lost_attaches: usize,
    /// The property after AttachVcpus; `None`: `isolated`.
    pub state: Option<&'static str>,
    /// The property Qos; `None`: kubelet chose the CPUs.
    pub qos: Option<&'static str>,
}

impl Behaviour {
    fn state(&self) -> &'static str {
        self.state.unwrap_or("isolated")
    }

    pub fn refusing() -> Behaviour {
        Behaviour {
            refuse: true,
            ..Behaviour::default()
        }
    }

    /// So many AttachVcpus fail first.
    pub fn failing(failing_attaches: usize) -> Behaviour {
        Behaviour {
            failing_attaches,
            ..Behaviour::default()
        }
    }
}

/// What the daemon was asked, and the processes that were passed to it.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    names: Arc<Mutex<Vec<String>>>,
    pids: Arc<Mutex<HashMap<&'static str, i32>>>,
    /// The daemon breaks every connection, as a restart does.
    pub hang_up: Arc<tokio::sync::Notify>,
    /// The daemon sends a signal on every connection.
    pub tell: Arc<tokio::sync::Notify>,
    /// The state that ListInstances returns, if it is set; empty: there is no instance.
    pub state: Arc<Mutex<Option<String>>>,
    /// The CPUs that ListInstances returns.
    pub cpus: Arc<Mutex<String>>,
    /// The property PendingResize; `None`: no CPUs are about to go.
    pub pending: Arc<Mutex<Option<(u32, u32, u64)>>>,
    /// The property MemoryLimit; `None`: there is no limit.
    pub memory_limit: Arc<Mutex<Option<u64>>>,
    /// While it is set, AttachVcpus is not answered.
    pub hangs: Arc<AtomicBool>,
}

impl Calls {
    pub fn names(&self) -> Vec<String> {
        self.names.lock().unwrap().clone()
    }

    pub fn pid(&self, who: &str) -> i32 {
        self.pids.lock().unwrap()[who]
    }

    pub fn pids(&self) -> Vec<i32> {
        self.pids.lock().unwrap().values().copied().collect()
    }

    fn add(&self, name: String) {
        self.names.lock().unwrap().push(name);
    }

    fn add_pid(&self, who: &'static str, pidfd: &impl AsFd) {
        let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd())).unwrap();
        let pid = fdinfo
            .lines()
            .find_map(|l| l.strip_prefix("Pid:"))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        self.pids.lock().unwrap().insert(who, pid);
    }
}

/// The requests to the allocator: ` name=value`, ordered by name.
fn asked(options: &Options) -> String {
    let mut asked: Vec<String> = options
        .iter()
        .filter(|(name, _)| *name != "anchor")
        .map(|(name, value)| match &**value {
            Variant::Str(text) => format!(" {name}={}", text.as_str()),
            Variant::U32(number) => format!(" {name}={number}"),
            other => format!(" {name}={other:?}"),
        })
        .collect();
    asked.sort();
    asked.concat()
}

struct Manager(Behaviour, Calls);

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    fn register_instance(
        &self,
        pod_uid: &str,
        cpuset: &str,
        options: Options,
    ) -> Result<(OwnedObjectPath, String), Error> {
        self.1
            .add(format!("RegisterInstance '{pod_uid}' '{cpuset}'{}", asked(&options)));
        let Some(Variant::Fd(anchor)) = options.get("anchor").map(|v| &**v) else {
            return Err(ErrorKind::NoAnchor.because("no anchor"));
        };
        self.1.add_pid("anchor", anchor);
        let registrations = self.1.names().iter().filter(|c| c.starts_with("Register")).count();
        if registrations <= self.0.busy {
            return Err(ErrorKind::Busy.because("another call is under way"));
        }
        if self.0.refuse {
            return Err(ErrorKind::NotGuaranteed.because("pod x has no exclusive CPUs"));
        }
        Ok((INSTANCE.try_into().unwrap(), "/stelia.slice/x.scope".into()))
    }

    fn list_instances(&self) -> Vec<(String, String, OwnedObjectPath, String, String)> {
        let state = self.1.state.lock().unwrap().clone();
        let state = state.unwrap_or_else(|| self.0.state().to_owned());
        let row = (
            "x".into(),
            "c".into(),
            INSTANCE.try_into().unwrap(),
            state.clone(),
            self.1.cpus.lock().unwrap().clone(),
        );
        if state.is_empty() { Vec::new() } else { vec![row] }
    }

    fn deregister(&self, pod_uid: &str, _options: Options) {
        self.1.add(format!("Deregister '{pod_uid}'"));
    }
}

/// What libraries that were made for a bus call first.
struct Bus;

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn hello(&self) -> &str {
        ":1.1"
    }
}

struct Instance(Behaviour, Calls);

#[interface(name = "io.stelia.Isolation1.Instance")]
impl Instance {
    async fn attach_vcpus(
        &self,
        qemu_pidfd: Fd<'_>,
        vcpus: Vec<(u32, i32, Options)>,
        options: Options,
    ) -> Result<Vec<(u32, u32, u32)>, Error> {
        self.1.add_pid("qemu", &qemu_pidfd);
        let failed = self.1.names().iter().filter(|c| c.starts_with("AttachVcpus")).count();
        let one = |(index, tid, props): &(u32, i32, Options)| match props.get("core-id").map(|core| &**core) {
            Some(Variant::U32(core)) => format!(" {index}:{tid}:core-id={core}"),
            other => format!(" {index}:{tid}:core-id={other:?}"),
        };
        let list = vcpus.iter().map(one).collect::<String>();
        let iothreads = match options.get("iothreads").map(|given| &**given) {
            None => String::new(),
            Some(given) => format!(
                " iothreads={:?}",
                Vec::<u32>::try_from(given.try_clone().unwrap()).unwrap()
            ),
        };
        self.1.add(format!("AttachVcpus{list}{iothreads}"));
        if failed < self.0.lost_attaches {
            self.1.hang_up.notify_one();
            std::future::pending::<()>().await;
        }
        while self.1.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        if failed < self.0.failing_attaches {
            return Err(ErrorKind::CpusetConflict.because("CPU 2 is taken"));
        }
        let shares = matches!(self.0.qos, Some("LS" | "BE"));
        let cpu = |index: u32| if shares { NOT_PINNED } else { 2 + index };
        Ok(vcpus.iter().map(|vcpu| (vcpu.0, 100 + vcpu.0, cpu(vcpu.0))).collect())
    }

    #[zbus(property)]
    fn qos(&self) -> &str {
        self.0.qos.unwrap_or_default()
    }

    #[zbus(property)]
    fn pending_resize(&self) -> (u32, u32, u64) {
        self.1.pending.lock().unwrap().unwrap_or_default()
    }

    #[zbus(property)]
    fn memory_limit(&self) -> u64 {
        self.1.memory_limit.lock().unwrap().unwrap_or(u64::MAX)
    }

    #[zbus(property)]
    fn degraded(&self) -> Vec<(String, String, String)> {
        let floats = self.1.state.lock().unwrap().as_deref() == Some("waiting");
        if floats {
            vec![(
                "evicted".into(),
                "CPU 2 was given to another pod".into(),
                "restart".into(),
            )]
        } else {
            Vec::new()
        }
    }

    #[zbus(property)]
    fn state(&self) -> &str {
        self.0.state()
    }
}

/// Serves the contract on `socket`, peer-to-peer, with a connection for each client.
pub fn daemon(socket: &Path, behaviour: Behaviour, calls: Calls) {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        let mut connections: Vec<zbus::Connection> = Vec::new();
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted.unwrap().0.into_std().unwrap(),
                () = calls.hang_up.notified() => {
                    for connection in connections.drain(..) {
                        connection.close().await.unwrap();
                    }
                    calls.add("hung up".into());
                    continue;
                }
                () = calls.tell.notified() => {
                    for connection in &connections {
                        let to = None::<&str>;
                        let (path, interface) = ("/io/stelia/Isolation1", "io.stelia.Isolation1.Manager");
                        // The runner may have closed this one.
                        let _ = connection.emit_signal(to, path, interface, "InstanceNew", &("x", "/x")).await;
                    }
                    continue;
                }
            };
            let builder = Builder::unix_stream(stream)
                .server(zbus::Guid::generate())
                .p2p()
                .serve_at("/org/freedesktop/DBus", Bus)
                .serve_at("/io/stelia/Isolation1", Manager(behaviour.clone(), calls.clone()))
                .serve_at(INSTANCE, Instance(behaviour.clone(), calls.clone()));
            connections.push(builder.build().await.unwrap());
        }
    });
}

/// QEMU's side of QMP: one client at a time; every command is appended to the file `commands`; the file `vcpus` has the
/// number of vCPUs; the file `run-state` its run state; the text of a file `event` is sent at once; a command in the file `refuses` is refused, from
/// the time in its second line on, and at one in the file `dies` it ends with 9. Exit codes: 7 powered down, 3 quit. Never returns.
pub fn qemu(dir: &Path) {
    let how = std::env::var("STELIA_TEST_QEMU").unwrap_or_default();
    let listener = UnixListener::bind(dir.join("qmp")).unwrap();
    let mut commands = std::fs::File::create(dir.join("commands")).unwrap();
    let mut counts = HashMap::new();
    let mut status = if how == "running" { "running" } else { "prelaunch" };
    if std::env::var("STELIA_TEST_GIVEN").is_ok_and(|given| given.contains("-incoming")) {
        status = "inmigrate";
    }
    loop {
        let mut stream = listener.accept().unwrap().0;
        let version = r#"{"qemu":{"micro":0,"minor":0,"major":10},"package":""}"#;
        let greeting = format!(r#"{{"QMP":{{"version":{version},"capabilities":["oob"]}}}}"#);
        if writeln!(stream, "{greeting}").is_err() {
            // The client only looked up who listens here.
            continue;
        }
        let talker = stream.try_clone().unwrap();
        let event_file = dir.join("event");
        std::thread::spawn(move || events(talker, &event_file));
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let Ok(line) = line else { break };
            let message: serde_json::Value = serde_json::from_str(&line).unwrap();
            let command = message["execute"].as_str().unwrap();
            match &message["arguments"] {
                serde_json::Value::Null => writeln!(commands, "{command}").unwrap(),
                serde_json::Value::Object(none) if none.is_empty() => writeln!(commands, "{command}").unwrap(),
                arguments => writeln!(commands, "{command}{arguments}").unwrap(),
            }
            if std::fs::read_to_string(dir.join("dies")).is_ok_and(|text| text == command) {
                std::process::exit(9);
            }
            let before = counts.entry(command.to_owned()).or_insert(0u32);
            let is_refused = refuses(dir, command, *before);
            *before += 1;
            let mut answer = if is_refused {
                serde_json::json!({"error": {"class": "GenericError", "desc": "refused"}, "id": message["id"]})
            } else {
                serde_json::json!({"return": answer(dir, command, status), "id": message["id"]})
            };
            if how == "odd" && command.starts_with("query") {
                // Fields that no QEMU sends today.
                answer["return"] = serde_json::json!({"unheard": [null, -1]});
            }
            // An unknown event before the answer: QEMU sends events at any time.
            let unknown = event("NEW_IN_QEMU_99");
            if stream.write_all(format!("{unknown}\n{answer}\n").as_bytes()).is_err() {
                break;
            }
            let told = if is_refused {
                None
            } else {
                obey(dir, command, &message["arguments"])
            };
            if let Some(name) = told {
                let _ = writeln!(stream, "{}", event(name));
            }
            match command {
                "cont" => status = "running",
                "stop" if status == "running" => status = "paused",
                "device_del" if !is_refused && !dir.join("keeps-vcpus").exists() => {
                    let _ = writeln!(stream, "{}", event("DEVICE_DELETED"));
                }
                "system_powerdown" if how != "deaf" => std::process::exit(7),
                "quit" if how != "deaf" => std::process::exit(3),
                _ => {}
            }
        }
    }
}

fn event(name: &str) -> serde_json::Value {
    serde_json::json!({"event": name, "data": {}, "timestamp": {"seconds": 1, "microseconds": 1}})
}

fn answer(dir: &Path, command: &str, status: &str) -> serde_json::Value {
    let count = std::fs::read_to_string(dir.join("vcpus")).map_or(2, |text| text.trim().parse::<i32>().unwrap());
    let vcpu = |index: i32| {
        serde_json::json!({"cpu-index": index, "thread-id": 7000 + index, "qom-path": "/a", "target": "x86_64",
            "props": {"core-id": index}})
    };
    match command {
        "query-cpus-fast" => (0..count).map(vcpu).collect(),
        "query-iothreads" if dir.join("iothreads").exists() => {
            serde_json::json!([{"id": "disk", "thread-id": 7100, "poll-max-ns": 32768}])
        }
        "query-iothreads" => serde_json::json!([]),
        "query-hotpluggable-cpus" if slots(dir) > 0 => (0..slots(dir)).rev().map(|index| slot(index, count)).collect(),
        "device_add" | "device_del" if !dir.join("keeps-vcpus").exists() => {
            let count = if command == "device_add" { count + 1 } else { count - 1 };
            std::fs::write(dir.join("vcpus"), count.to_string()).unwrap();
            serde_json::json!({})
        }
        "query-hotpluggable-cpus" if dir.join("slots").exists() => serde_json::json!([{"type": "cpu", "props": {}}]),
        "query-hotpluggable-cpus" => serde_json::json!([{"type": "cpu", "qom-path": "/a", "props": {}}]),
        "query-memory-devices" => memory_devices(dir),
        "query-memory-size-summary" => {
            let plugged: u64 = memory_devices(dir)
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|one| one["data"]["size"].as_u64())
                .sum();
            serde_json::json!({"base-memory": 1u64 << 30, "plugged-memory": plugged})
        }
        "query-balloon" => {
            serde_json::json!({"actual": std::fs::read_to_string(dir.join("balloon")).unwrap().trim().parse::<u64>().unwrap()})
        }
        "query-status" => {
            let set = std::fs::read_to_string(dir.join("run-state"));
            let status = set.as_deref().unwrap_or(status);
            serde_json::json!({"status": status, "running": status == "running"})
        }
        _ => serde_json::json!({}),
    }
}

/// A guest plugs and gives up what it is asked for, unless there is a file `keeps-memory`. Returns the event that tells it.
fn obey(dir: &Path, command: &str, arguments: &serde_json::Value) -> Option<&'static str> {
    let obeys = !dir.join("keeps-memory").exists();
    match command {
        "balloon" => {
            let set = || std::fs::write(dir.join("balloon"), arguments["value"].to_string()).unwrap();
            obeys.then(set).map(|()| "BALLOON_CHANGE")
        }
        "qom-set" => {
            let mut devices = memory_devices(dir);
            let path = arguments["path"].as_str().unwrap();
            let device = devices
                .as_array_mut()
                .unwrap()
                .iter_mut()
                .find(|one| path.ends_with(one["data"]["id"].as_str().unwrap()));
            let data = &mut device.unwrap()["data"];
            data["requested-size"] = arguments["value"].clone();
            if obeys {
                data["size"] = arguments["value"].clone();
            }
            std::fs::write(dir.join("memory-devices"), devices.to_string()).unwrap();
            obeys.then_some("MEMORY_DEVICE_SIZE_CHANGE")
        }
        _ => None,
    }
}

/// The file `memory-devices`.
fn memory_devices(dir: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(dir.join("memory-devices")).unwrap_or_else(|_| "[]".into());
    serde_json::from_str(&text).unwrap()
}

/// Whether a command is refused that came so often before.
fn refuses(dir: &Path, command: &str, before: u32) -> bool {
    if command == "query-balloon" && !dir.join("balloon").exists() {
        return true;
    }
    let text = std::fs::read_to_string(dir.join("refuses")).unwrap_or_default();
    let (name, from) = text.trim().split_once('\n').unwrap_or((text.trim(), "0"));
    name == command && before >= from.parse().unwrap()
}

/// The number in the file `slots`: of all slots for vCPUs, each a core.
fn slots(dir: &Path) -> i32 {
    std::fs::read_to_string(dir.join("slots")).map_or(0, |text| text.trim().parse().unwrap_or(0))
}

fn slot(index: i32, vcpus: i32) -> serde_json::Value {
    let mut slot = serde_json::json!({"type": "host-x86_64-cpu", "vcpus-count": 1, "props": {"core-id": index}});
    if index < vcpus {
        slot["qom-path"] = format!("/cpu/{index}").into();
    }
    slot
}

/// Sends what is put into the file, once, until the client leaves.
fn events(mut stream: std::os::unix::net::UnixStream, file: &Path) {
    loop {
        if let Ok(name) = std::fs::read_to_string(file)
            && !name.is_empty()
        {
            if writeln!(stream, "{}", event(name.trim())).is_err() {
                return;
            }
            let _ = std::fs::remove_file(file);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A QEMU without a monitor: its threads have the names that QEMU gives them. Never returns.
pub fn named() {
    for name in ["CPU 0/TCG", "CPU 1/TCG", "IO disk"] {
        let thread = std::thread::Builder::new().name(name.into());
        thread
            .spawn(|| {
                loop {
                    std::thread::park()
                }
            })
            .unwrap();
    }
    loop {
        std::thread::park();
    }
}
