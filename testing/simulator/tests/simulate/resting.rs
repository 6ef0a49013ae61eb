//! The connection of a runner that was silent is put to rest in the daemon; the runner must not notice it.

use std::time::Duration;

use futures_util::StreamExt as _;
use stelia_api::client::{InstanceProxy, ManagerProxy};
use tokio::time::{sleep, timeout};
use zbus::fdo::{IntrospectableProxy, ObjectManagerProxy, PropertiesChanged};
use zbus::message::Type;
use zbus::{Connection, MessageStream};

use super::*;

/// Longer than the daemon waits.
const SILENCE: Duration = Duration::from_millis(200);

/// The signals up to the first of this name, each with the one property in it.
async fn told(messages: &mut MessageStream, last: &str) -> Vec<String> {
    let mut signals = Vec::new();
    let until_last = async {
        while !signals.iter().any(|signal: &String| signal.starts_with(last)) {
            let message = messages.next().await.expect("a connection").expect("a message");
            if message.message_type() != Type::Signal {
                continue;
            }
            let name = message.header().member().expect("a name").to_string();
            let changed = PropertiesChanged::from_message(message);
            let property = changed.map(|changed| {
                let arguments = changed.args().expect("arguments");
                arguments.changed_properties().keys().copied().collect::<String>()
            });
            signals.push(format!("{name} {}", property.unwrap_or_default()));
        }
    };
    let in_time = timeout(Duration::from_secs(10), until_last).await;
    assert!(in_time.is_ok(), "no {last} after {signals:?}");
    signals
}

/// What the runner can query of its instance.
async fn asked(runner: &Connection) -> (String, String, usize) {
    let manager = ManagerProxy::new(runner).await.expect("the Manager");
    let path = manager.get_instance("").await.expect("its instance");
    let instance = InstanceProxy::builder(runner)
        .path(path.clone())
        .cache_properties(zbus::proxy::CacheProperties::No);
    let instance = instance.build().await.expect("a proxy");
    let introspectable = IntrospectableProxy::builder(runner)
        .destination("io.stelia.Isolation1")
        .path(path);
    let introspectable = introspectable.build().await.expect("a proxy");
    let objects = ObjectManagerProxy::builder(runner)
        .destination("io.stelia.Isolation1")
        .path(OBJECT);
    let objects = objects.build().await.expect("a proxy");
    sleep(SILENCE).await;
    let state = instance.state().await.expect("its state");
    sleep(SILENCE).await;
    let interfaces = introspectable.introspect().await.expect("its interfaces");
    sleep(SILENCE).await;
    let managed = objects.get_managed_objects().await.expect("the objects");
    (state, interfaces, managed.values().filter(|of| !of.is_empty()).count())
}

/// kubelet forgets the VM.
fn forget(path: &Path) {
    let kept = fs::read_to_string(path).expect("kubelet's state");
    let mut state: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    state["entries"]
        .as_object_mut()
        .expect("entries")
        .remove(VM)
        .expect("the VM");
    state["defaultCpuSet"] = "0-3,6-7".into();
    // kubelet itself takes 0 for a file without one.
    state["checksum"] = 0.into();
    let new = path.with_extension("new");
    fs::write(&new, state.to_string()).expect("write");
    fs::rename(new, path).expect("rename");
}

#[test]
fn a_runner_that_was_silent_is_answered_and_told_as_before() {
    let simulation = Simulation::start(&scenario(""));
    let socket = format!("unix:path={}/{VM}.socket", simulation.sockets.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(async {
        let runner = zbus::connection::Builder::address(socket.as_str()).p2p().build();
        let runner = runner.await.expect("the pod's socket");
        let mut messages = MessageStream::from(&runner);
        let (state, interfaces, objects) = asked(&runner).await;
        assert_eq!((state.as_str(), objects), ("isolated", 1));
        assert!(interfaces.contains("AttachVcpus"), "{interfaces}");
        let announced = told(&mut messages, "InstanceNew").await;
        assert!(announced.contains(&"InterfacesAdded ".to_owned()), "{announced:?}");

        // It gets signals of changes only.
        sleep(SILENCE).await;
        forget(&simulation.sockets.join("kubelet/cpu_manager_state"));
        let changed = told(&mut messages, "PropertiesChanged Degraded").await;
        assert!(
            changed.iter().all(|signal| signal.starts_with("PropertiesChanged")),
            "{changed:?}"
        );
        assert_eq!(asked(&runner).await, (state, interfaces, objects));
        sleep(SILENCE).await;
        simulation.ctl(&["release", VM]);
        let gone = told(&mut messages, "InstanceRemoved").await;
        assert!(!gone.contains(&"InstanceNew ".to_owned()), "{gone:?}");
        sleep(SILENCE).await;
        let manager = ManagerProxy::new(&runner).await.expect("the Manager");
        assert!(manager.list_instances().await.expect("a list").is_empty());
    });
}
