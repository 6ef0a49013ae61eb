//! A caller that asks for wrong things, on the runner socket (as a process in a pod) and on the system bus.

use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stelia_api::client::{Dict, InstanceProxy, ManagerProxy};
use zbus::connection::Builder;
use zbus::{Connection, Fd, OwnedObjectPath, Variant};

use crate::support::guest::QEMU_NAME;
use crate::support::host::run;
use crate::support::pods::Pod;

/// The error's name without its prefix, and its text.
pub type Refusal = (String, String);

const PREFIX: &str = "io.stelia.Isolation1.Error.";

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

pub fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
    pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open")
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    runtime.block_on(future)
}

/// A process that could be an anchor.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("sleep"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub async fn register(connection: &Connection, pod: &str, cpuset: &str, anchor: Option<&OwnedFd>) -> Refusal {
    let manager = ManagerProxy::new(connection).await.expect("proxy");
    let mut options = Dict::new();
    if let Some(anchor) = anchor {
        options.insert("anchor", Variant::from(Fd::from(anchor.as_fd())));
    }
    refusal(manager.register_instance(pod, cpuset, options).await)
}

/// A registration with options as words: `qos=LSE cpus=2`.
pub async fn register_with(
    connection: &Connection,
    pod: &str,
    anchor: &OwnedFd,
    words: &str,
) -> zbus::Result<OwnedObjectPath> {
    let manager = ManagerProxy::new(connection).await.expect("proxy");
    let mut options = Dict::new();
    options.insert("anchor", Variant::from(Fd::from(anchor.as_fd())));
    for word in words.split_whitespace() {
        let (name, value) = word.split_once('=').expect("NAME=VALUE");
        let number = value.parse::<u32>();
        options.insert(name, number.map_or_else(|_| Variant::from(value), Variant::from));
    }
    Ok(manager.register_instance(pod, "", options).await?.0)
}

pub async fn attach(connection: &Connection, path: &str, qemu: &OwnedFd, thread: i32) -> Refusal {
    let instance = InstanceProxy::builder(connection)
        .path(path)
        .build()
        .await
        .expect("proxy");
    let vcpus = vec![(0, thread, Dict::new())];
    refusal(instance.attach_vcpus(Fd::from(qemu.as_fd()), vcpus, Dict::new()).await)
}

/// Runs in a pod: asks for the thing named by STELIA_CASE and prints the refusal.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(case) = std::env::var("STELIA_CASE") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let (name, text) = runtime.block_on(async {
        let builder = Builder::address("unix:path=/run/stelia/runner/socket").p2p();
        let connection = builder.build().await.expect("connect");
        let sleeper = Sleeper::start();
        let anchor = pidfd(sleeper.0.id());
        match case.as_str() {
            "no-anchor" => register(&connection, "", "", None).await,
            "foreign-thread" => {
                let manager = ManagerProxy::new(&connection).await.expect("proxy");
                let path = manager.get_instance("").await.expect("own instance");
                // QEMU is the pod's own, the thread is not QEMU's.
                let qemu = run(&["pgrep", "-o", "-x", QEMU_NAME]).parse().expect("qemu");
                attach(&connection, path.as_str(), &pidfd(qemu), sleeper.0.id().cast_signed()).await
            }
            "foreign-process" => {
                let manager = ManagerProxy::new(&connection).await.expect("proxy");
                let path = manager.get_instance("").await.expect("own instance");
                attach(&connection, path.as_str(), &anchor, 1).await
            }
            "pod-of-10-kb" => register(&connection, &"a".repeat(10_000), "", Some(&anchor)).await,
            words if words.starts_with("show|") => {
                let manager = ManagerProxy::new(&connection).await.expect("proxy");
                refusal(manager.get_instance(&words[5..]).await)
            }
            words if words.starts_with("deregister|") => {
                let manager = ManagerProxy::new(&connection).await.expect("proxy");
                refusal(manager.deregister(&words[11..], Dict::new()).await)
            }
            words if words.starts_with("with|") => refusal(register_with(&connection, "", &anchor, &words[5..]).await),
            words if words.starts_with("register|") => register(&connection, &words[9..], "", Some(&anchor)).await,
            words => {
                let (pod, cpuset) = words.split_once('|').expect("POD|CPUSET");
                register(&connection, pod, cpuset, Some(&anchor)).await
            }
        }
    });
    println!("REFUSED {name} {text}");
}

/// What a process exec'd into the pod's container is answered.
pub fn ask_from(pod: &Pod, case: &str) -> Refusal {
    let me = std::env::current_exe().expect("own path");
    let me = me.to_str().expect("own path");
    let variable = format!("STELIA_CASE={case}");
    let exec = ["kubelet-standin", "pod", "exec", &pod.name, "--", "env", &variable, me];
    let text = run(&[&exec[..], &["client::process", "--exact", "--ignored", "--nocapture"]].concat());
    let line = text
        .lines()
        .find_map(|line| line.split_once("REFUSED "))
        .unwrap_or_else(|| panic!("{text}"))
        .1;
    let (name, text) = line.split_once(' ').expect("name and text");
    println!("  {case:.40}: {name}: {text}");
    (name.to_owned(), text.to_owned())
}

/// By root, over the system bus.
pub fn register_and_deregister(pod: &Pod, anchor: u32) {
    block_on(async {
        let bus = Builder::system().build().await.expect("bus");
        let manager = ManagerProxy::new(&bus).await.expect("proxy");
        let anchor = pidfd(anchor);
        let mut options = Dict::new();
        options.insert("anchor", Variant::from(Fd::from(anchor.as_fd())));
        manager
            .register_instance(&pod.uid, "", options)
            .await
            .expect("registered");
        manager.deregister(&pod.uid, Dict::new()).await.expect("deregistered");
    });
}

pub fn memory_kib(pid: &str) -> usize {
    let status = crate::support::host::read(format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("VmRSS")
}
