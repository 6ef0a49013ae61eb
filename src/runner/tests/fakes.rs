//! A daemon and a QEMU that play their parts.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use zbus::connection::Builder;
use zbus::{Fd, OwnedObjectPath, OwnedVariant, Variant, interface};

use crate::dbus::error::Error;

const INSTANCE: &str = "/io/stelia/Isolation1/instance/x";
type Options = HashMap<String, OwnedVariant>;

/// How the daemon behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// RegisterInstance fails.
    pub refuse: bool,
    /// So many AttachVcpus fail first.
    pub failing_attaches: usize,
    /// The property after AttachVcpus.
    pub state: &'static str,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            refuse: false,
            failing_attaches: 0,
            state: "isolated",
        }
    }
}

/// What the daemon was asked, and the processes handed to it.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    names: Arc<Mutex<Vec<String>>>,
    pids: Arc<Mutex<HashMap<&'static str, i32>>>,
    /// The daemon breaks every connection, as a restart does.
    pub hang_up: Arc<tokio::sync::Notify>,
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

struct Manager(Behaviour, Calls);

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    fn register_instance(
        &self,
        pod_uid: &str,
        cpuset: &str,
        options: Options,
    ) -> Result<(OwnedObjectPath, String), Error> {
        self.1.add(format!("RegisterInstance '{pod_uid}' '{cpuset}'"));
        let Some(Variant::Fd(anchor)) = options.get("anchor").map(|v| &**v) else {
            return Err(Error::NoAnchor("no anchor".into()));
        };
        self.1.add_pid("anchor", anchor);
        if self.0.refuse {
            return Err(Error::NotGuaranteed("pod x has no exclusive CPUs".into()));
        }
        Ok((INSTANCE.try_into().unwrap(), "/stelia.slice/x.scope".into()))
    }

    fn deregister(&self, pod_uid: &str, _options: Options) {
        self.1.add(format!("Deregister '{pod_uid}'"));
    }
}

struct Instance(Behaviour, Calls);

#[interface(name = "io.stelia.Isolation1.Instance")]
impl Instance {
    fn attach_vcpus(
        &self,
        qemu_pidfd: Fd<'_>,
        vcpus: Vec<(u32, i32, Options)>,
        _options: Options,
    ) -> Result<Vec<(u32, u32, u32)>, Error> {
        self.1.add_pid("qemu", &qemu_pidfd);
        let failed = self.1.names().iter().filter(|c| c.starts_with("AttachVcpus")).count();
        let one = |(index, tid, props): &(u32, i32, Options)| match &*props["core-id"] {
            Variant::U32(core) => format!(" {index}:{tid}:core-id={core}"),
            other => format!(" {index}:{tid}:core-id={other:?}"),
        };
        self.1
            .add(format!("AttachVcpus{}", vcpus.iter().map(one).collect::<String>()));
        if failed < self.0.failing_attaches {
            return Err(Error::CpusetConflict("CPU 2 is taken".into()));
        }
        Ok(vec![(0, 100, 2), (1, 101, 3)])
    }

    #[zbus(property)]
    fn state(&self) -> &str {
        self.0.state
    }
}

/// Serve the contract on `socket`, peer-to-peer, a connection a client.
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
            };
            let builder = Builder::unix_stream(stream)
                .server(zbus::Guid::generate())
                .p2p()
                .serve_at("/io/stelia/Isolation1", Manager(behaviour.clone(), calls.clone()))
                .serve_at(INSTANCE, Instance(behaviour.clone(), calls.clone()));
            connections.push(builder.build().await.unwrap());
        }
    });
}

/// QEMU's QMP side: one client at a time; every command goes to the file `commands`. Exit codes: 7 powered down, 3 quit.
/// Never returns.
pub fn qemu(dir: &Path) {
    let deaf = std::env::var("STELIA_TEST_QEMU").is_ok_and(|v| v == "deaf");
    let listener = UnixListener::bind(dir.join("qmp")).unwrap();
    let mut commands = std::fs::File::create(dir.join("commands")).unwrap();
    let mut status = "prelaunch";
    loop {
        let mut stream = listener.accept().unwrap().0;
        let version = r#"{"qemu":{"micro":0,"minor":0,"major":10},"package":""}"#;
        writeln!(stream, r#"{{"QMP":{{"version":{version},"capabilities":["oob"]}}}}"#).unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let Ok(line) = line else { break };
            let message: serde_json::Value = serde_json::from_str(&line).unwrap();
            let command = message["execute"].as_str().unwrap();
            writeln!(commands, "{command}").unwrap();
            let answer = match command {
                "query-cpus-fast" => serde_json::json!([
                    {"cpu-index": 0, "thread-id": 7000, "qom-path": "/a", "target": "x86_64", "props": {"core-id": 0}},
                    {"cpu-index": 1, "thread-id": 7001, "qom-path": "/b", "target": "x86_64", "props": {"core-id": 1}},
                ]),
                "query-iothreads" => serde_json::json!([]),
                "query-status" => serde_json::json!({"status": status, "running": status == "running"}),
                _ => serde_json::json!({}),
            };
            let answer = serde_json::json!({"return": answer, "id": message["id"]});
            // An event before the answer, as QEMU likes to do.
            let event = r#"{"event":"RESUME","data":{},"timestamp":{"seconds":1,"microseconds":1}}"#;
            if writeln!(stream, "{event}\n{answer}").is_err() {
                break;
            }
            match command {
                "cont" => status = "running",
                "system_powerdown" if !deaf => std::process::exit(7),
                "quit" if !deaf => std::process::exit(3),
                _ => {}
            }
        }
    }
}
