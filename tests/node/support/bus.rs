//! The daemon's D-Bus: root's calls on the system bus, and what a process in a pod is answered on the runner socket.

use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;
use serde_json::Value;
use stelia_api::client::{Dict, InstanceProxy, ManagerProxy};
use tokio::runtime::{Builder as Tokio, Runtime};
use zbus::connection::Builder;
use zbus::proxy::CacheProperties;
use zbus::{Connection, Fd, OwnedObjectPath, Variant};

use super::{Pod, json, parse, run, words};

/// The error's name without its prefix, and its text.
pub type Refusal = (String, String);

const PREFIX: &str = "io.stelia.Isolation1.Error.";
pub const MANAGER: &str = "/io/stelia/Isolation1";

pub fn refusal<T: std::fmt::Debug>(result: zbus::Result<T>) -> Refusal {
    match result {
        Err(zbus::Error::MethodError(name, text, _)) => {
            let name = name.as_str();
            let short = name.strip_prefix(PREFIX).unwrap_or_else(|| panic!("{name}: {text:?}"));
            (short.to_owned(), text.unwrap_or_default())
        }
        other => panic!("not refused: {other:?}"),
    }
}

pub fn assert_refused(refusal: &Refusal, name: &str, mentions: &str) {
    let (given, text) = refusal;
    assert_eq!(given, name, "{text}");
    assert!(text.contains(mentions), "{text:?} does not say {mentions:?}");
    assert!(text.len() < 1000, "{} bytes", text.len());
}

pub fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
    pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open")
}

fn runtime() -> Runtime {
    Tokio::new_current_thread().enable_all().build().expect("runtime")
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

/// The manager's proxy, which asks nothing by itself.
pub async fn manager(connection: &Connection) -> ManagerProxy<'static> {
    ManagerProxy::new(connection).await.expect("proxy")
}

/// The proxy of an instance, which asks nothing by itself.
pub async fn instance_at(connection: &Connection, path: &OwnedObjectPath) -> InstanceProxy<'static> {
    let proxy = InstanceProxy::builder(connection).path(path.clone());
    let proxy = proxy.cache_properties(CacheProperties::No);
    proxy.build().await.expect("proxy")
}

/// A registration's options: `anchor`, and words such as `qos=LSE cpus=2`.
pub fn options<'a>(anchor: Option<&'a OwnedFd>, words: &'a str) -> Dict<'a> {
    let mut options = Dict::new();
    if let Some(anchor) = anchor {
        options.insert("anchor", Variant::from(Fd::from(anchor.as_fd())));
    }
    for word in words.split_whitespace() {
        let (name, value) = word.split_once('=').expect("NAME=VALUE");
        let number = value.parse::<u32>();
        options.insert(name, number.map_or_else(|_| Variant::from(value), Variant::from));
    }
    options
}

pub async fn register(at: &Connection, uid: &str, cpuset: &str, options: Dict<'_>) -> zbus::Result<OwnedObjectPath> {
    Ok(manager(at).await.register_instance(uid, cpuset, options).await?.0)
}

/// These threads of a VMM are the instance's vCPUs, in order.
pub async fn attach(at: &Connection, path: &OwnedObjectPath, vmm: u32, threads: &[i32]) -> zbus::Result<()> {
    let vmm = pidfd(vmm);
    let vcpus = (0..).zip(threads).map(|(index, thread)| (index, *thread, Dict::new()));
    let (vmm, instance) = (Fd::from(vmm.as_fd()), instance_at(at, path).await);
    instance.attach_vcpus(vmm, vcpus.collect(), Dict::new()).await.map(drop)
}

/// A pod's way in.
pub async fn runner_socket() -> Connection {
    let builder = Builder::address("unix:path=/run/stelia/runner/socket").p2p();
    builder.build().await.expect("connect")
}

/// Root's way in, for many calls.
pub struct Bus {
    runtime: Runtime,
    pub connection: Connection,
}

impl Bus {
    pub fn open() -> Self {
        let runtime = runtime();
        let connection = runtime.block_on(async { Builder::system().build().await.expect("bus") });
        Self { runtime, connection }
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// What a registration of a pod is answered.
    pub fn try_register(&self, uid: &str, cpuset: &str, options: Dict<'_>) -> zbus::Result<OwnedObjectPath> {
        self.block_on(register(&self.connection, uid, cpuset, options))
    }

    pub fn register(&self, pod: &Pod, anchor: u32) -> OwnedObjectPath {
        let registered = self.try_register(&pod.uid, "", options(Some(&pidfd(anchor)), ""));
        registered.unwrap_or_else(|error| panic!("register {}: {error}", pod.name))
    }

    pub fn try_attach(&self, path: &OwnedObjectPath, vmm: u32, threads: &[i32]) -> zbus::Result<()> {
        self.block_on(attach(&self.connection, path, vmm, threads))
    }

    pub fn deregister(&self, pod: &Pod) {
        self.block_on(async {
            let done = manager(&self.connection).await.deregister(&pod.uid, Dict::new()).await;
            done.unwrap_or_else(|error| panic!("deregister {}: {error}", pod.name));
        });
    }

    pub async fn instance(&self, pod: &Pod) -> InstanceProxy<'static> {
        let path = manager(&self.connection).await.get_instance(&pod.uid).await;
        instance_at(&self.connection, &path.expect("path")).await
    }
}

/// A `busctl call` on an object of the daemon's: a method, and its arguments.
pub fn busctl(object: &str, interface: &str, method: &[&str]) -> Vec<String> {
    let interface = format!("io.stelia.Isolation1.{interface}");
    let call = words("busctl --json=short call io.stelia.Isolation1");
    let call = [&call[..], &[object, &interface], method].concat();
    call.into_iter().map(str::to_owned).collect()
}

/// The first value of the reply to a call of the manager's.
pub fn call(method: &[&str]) -> Value {
    let reply = json(&run(&busctl(MANAGER, "Manager", method)));
    reply["data"][0].clone()
}

/// The JSON in the string that `busctl` printed.
pub fn answered<T: DeserializeOwned>(printed: &str) -> T {
    let reply = json(printed);
    parse(reply["data"][0].as_str().expect("a string"))
}

pub fn describe() -> Value {
    answered(&run(&busctl(MANAGER, "Manager", &["Describe"])))
}
