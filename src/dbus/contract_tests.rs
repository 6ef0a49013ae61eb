//! The live interfaces against `dbus-interfaces/`: names, types, directions, access and change signals; and what the Manager
//! tells of.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, RwLock};

use futures_util::StreamExt as _;
use stelia_api::MANAGER_PATH;
use stelia_api::client::ManagerProxy;
use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_model as model;
use stelia_settings::Settings;
use stelia_testnode::{Kernel, Model, topology};
use zbus::fdo::PropertiesChanged;
use zbus::object_server::Interface as _;
use zbus::wire::StructureBuilder;
use zbus::{Fd, Guid, MessageStream, Variant, connection};
use zbus_xml::{ArgDirection, Interface, Node};

use super::caller::EntryPoint;
use super::exported_objects::Exporter;
use super::instance::Instance;
use super::manager::Manager;
use super::test_bus::PrivateBus;
use crate::engine::{Engine, Handle};

pub(super) fn handle(root: &std::path::Path) -> Handle {
    crate::journal::catalog_tests::hold_to_it();
    let model = Model::node(&topology(1, 1, 1), root, Kernel::V6_12).unwrap();
    let settings = Settings {
        kubelet_root: root.into(),
        ..Settings::default()
    };
    Engine::new(model.system(), settings).unwrap().1
}

/// Everything that callers can tell apart, one line each.
fn lines(interface: &Interface<'_>) -> BTreeSet<String> {
    let arg = |arg: &zbus_xml::Arg<'_>| {
        let direction = match arg.direction() {
            Some(ArgDirection::In) => "in ",
            Some(ArgDirection::Out) => "out ",
            None => "",
        };
        format!("{direction}{} {}", arg.ty(), arg.name().unwrap_or_default())
    };
    let args = |args: &[zbus_xml::Arg<'_>]| args.iter().map(arg).collect::<Vec<_>>().join(", ");
    let changes = |property: &zbus_xml::Property<'_>| {
        let name = "org.freedesktop.DBus.Property.EmitsChangedSignal";
        let found = property
            .annotations()
            .iter()
            .find(|annotation| annotation.name() == name);
        found.map_or("true", |annotation| annotation.value()).to_owned()
    };
    let methods = interface
        .methods()
        .map(|method| format!("method {}({})", method.name(), args(method.args())));
    let signals = interface
        .signals()
        .map(|signal| format!("signal {}({})", signal.name(), args(signal.args())));
    let properties = interface.properties().map(|property| {
        let (name, ty, access) = (property.name(), property.ty(), property.access());
        format!("property {name} {ty} {access:?} {}", changes(property))
    });
    methods.chain(signals).chain(properties).collect()
}

fn compare(live: &str, contract: &str) {
    let live = format!("<node>{live}</node>");
    let live = Node::try_from(live.as_str()).unwrap();
    let contract = Node::try_from(contract).unwrap();
    let live = &live.interfaces()[0];
    let mut interfaces = contract.interfaces().iter();
    let contract = interfaces.find(|one| one.name() == live.name()).unwrap();
    assert_eq!(lines(live), lines(contract));
    assert!(lines(live).len() >= 3);
}

#[tokio::test]
async fn manager_is_what_its_xml_says() {
    let root = tempfile::tempdir().unwrap();
    let engine = handle(root.path());
    let exporter = Exporter::new(engine.clone(), EntryPoint::Bus(Default::default()), None);
    let mut xml = String::new();
    Manager {
        engine,
        entry_point: EntryPoint::Bus(Default::default()),
        exporter,
        readings: super::cached_readings::Readings::default(),
    }
    .introspect_to_writer(&mut xml, 0);
    compare(
        &xml,
        include_str!("../../dbus-interfaces/io.stelia.Isolation1.Manager.xml"),
    );
}

#[test]
fn the_object_manager_is_what_the_managers_xml_says() {
    let mut xml = String::new();
    zbus::fdo::ObjectManager.introspect_to_writer(&mut xml, 0);
    let contract = include_str!("../../dbus-interfaces/io.stelia.Isolation1.Manager.xml");
    // zbus gives the answer no name.
    compare(&xml, &contract.replace("<arg name=\"objects\"", "<arg"));
}

/// An instance's object without anything; `root` is who counts as root.
fn an_instance(engine: Handle, root: u32) -> Instance {
    let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
    let view = Arc::new(crate::engine::registered(pod.clone()));
    Instance {
        engine,
        entry_point: EntryPoint::Bus(super::caller::Users::with_root(root)),
        pod,
        shown: Arc::new(RwLock::new(view)),
    }
}

#[tokio::test]
async fn instance_is_what_its_xml_says() {
    let root = tempfile::tempdir().unwrap();
    let instance = an_instance(handle(root.path()), 0);
    let mut xml = String::new();
    instance.introspect_to_writer(&mut xml, 0);
    compare(
        &xml,
        include_str!("../../dbus-interfaces/io.stelia.Isolation1.Instance.xml"),
    );
}

#[tokio::test]
async fn job_is_what_its_xml_says() {
    let job = model::Job {
        id: 1,
        scope: "node".into(),
        phase: model::JobPhase::Pending,
        reason: String::new(),
        moves: Vec::new(),
        began_us: 0,
        ended_us: 0,
    };
    let shown = Arc::new(RwLock::new(job));
    let mut xml = String::new();
    super::job::Job { shown }.introspect_to_writer(&mut xml, 0);
    compare(&xml, include_str!("../../dbus-interfaces/io.stelia.Isolation1.Job.xml"));
}

/// What the node's properties tell a client when one view follows another: the names that changed.
async fn told(old: &model::Node, new: &model::Node) -> BTreeSet<String> {
    let root = tempfile::tempdir().unwrap();
    let engine = handle(root.path());
    let exporter = Exporter::new(engine.clone(), EntryPoint::Bus(Default::default()), None);
    let manager = Manager {
        engine,
        entry_point: EntryPoint::Bus(Default::default()),
        exporter,
        readings: super::cached_readings::Readings::default(),
    };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let server = connection::Builder::unix_stream(ours)
        .server(Guid::generate())
        .p2p()
        .serve_at(MANAGER_PATH, manager)
        .build();
    let client = connection::Builder::unix_stream(theirs).p2p().build();
    let (server, client) = tokio::join!(server, client);
    let (server, client) = (server.unwrap(), client.unwrap());
    let messages = MessageStream::from(&client);
    let manager = server
        .object_server()
        .interface::<_, Manager>(MANAGER_PATH)
        .await
        .unwrap();
    let emitter = manager.signal_emitter().to_owned();
    manager.get().await.changed(&emitter, old, new).await.unwrap();
    // The connection's end comes after what was told.
    server.close().await.unwrap();
    let signals = messages.filter_map(|message| async { PropertiesChanged::from_message(message.ok()?) });
    let signals: Vec<PropertiesChanged> = signals.collect().await;
    let names = signals.iter().flat_map(|signal| {
        let arguments = signal.args().unwrap();
        let names = arguments.changed_properties().keys();
        names.map(ToString::to_string).collect::<Vec<_>>()
    });
    names.collect()
}

#[tokio::test]
async fn the_manager_tells_of_drift_of_kubelet_of_the_pool_and_of_nothing_else() {
    let old = model::Node::default();
    let mut new = old.clone();
    new.kubelet_modified_us = Some(1);
    assert!(told(&old, &new).await.is_empty());
    new.counters.drift_found = 1;
    assert_eq!(told(&old, &new).await, BTreeSet::from(["DriftFound".to_owned()]));
    new.counters.drift_repaired = 1;
    new.kubelet_problem = Some("gone".to_owned());
    new.pool = Some(CpuSet::below(2));
    new.ledger = Arc::new(stelia_api::ledger::LedgerSummary {
        key: "key".to_owned(),
        ..Default::default()
    });
    new.vm_capacity = 3;
    let names = [
        "AdmissionProblem",
        "DriftFound",
        "DriftRepaired",
        "LedgerKey",
        "NodeProblems",
        "SharedCPUs",
        "VmCapacity",
    ]
    .map(str::to_owned);
    assert_eq!(told(&old, &new).await, BTreeSet::from(names));
}

/// Values for a call's arguments, of each type that the contract's methods take: nothing is to come of them.
fn argument(signature: &str) -> Variant<'static> {
    match signature {
        "s" => Variant::from("x"),
        "u" => Variant::from(1u32),
        "t" => Variant::from(1u64),
        "h" => Variant::from(Fd::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()))),
        "a{sv}" => Variant::from(HashMap::from([("no-such-option", Variant::from(true))])),
        "a(uia{sv})" => Variant::from(Vec::<(u32, i32, HashMap<&str, Variant<'_>>)>::new()),
        "aa{sv}" => Variant::from(Vec::<HashMap<&str, Variant<'_>>>::new()),
        other => panic!("no argument of type {other}"),
    }
}

/// A method that takes options of its own, with the types of all its arguments.
fn methods_with_options(contract: &str) -> Vec<(String, Vec<String>)> {
    let contract = Node::try_from(contract).unwrap();
    let inputs = |method: &zbus_xml::Method<'_>| -> Vec<String> {
        let ins = method
            .args()
            .iter()
            .filter(|arg| arg.direction() == Some(ArgDirection::In));
        ins.map(|arg| arg.ty().to_string()).collect()
    };
    let methods = contract.interfaces()[0].methods();
    let methods = methods.map(|method| (method.name().to_string(), inputs(method)));
    methods
        .filter(|(_, inputs)| inputs.iter().any(|one| one == "a{sv}"))
        .collect()
}

/// What `src/caller_rights.rs` decides of, and what everybody may read, must reach the daemon: the bus denies what its policy does not name.
#[test]
fn the_buss_policy_lets_every_method_of_the_contract_through() {
    let policy = include_str!("../../packaging/dbus/io.stelia.Isolation1.conf");
    let mut compared = 0;
    for contract in std::fs::read_dir("dbus-interfaces").unwrap() {
        let contract = std::fs::read_to_string(contract.unwrap().path()).unwrap();
        for interface in Node::try_from(contract.as_str()).unwrap().interfaces() {
            for method in interface.methods() {
                let (interface, member) = (interface.name(), method.name());
                let named = format!(r#"send_interface="{interface}" send_member="{member}""#);
                // Properties are read only.
                let may_miss = ["Set", "GetMachineId"].contains(&member.as_str());
                assert!(may_miss || policy.contains(&named), "{interface}.{member}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 20, "{compared}");
}

#[tokio::test]
async fn an_option_that_a_call_does_not_have_is_refused_whichever_call_it_is() {
    let root = tempfile::tempdir().unwrap();
    let engine = handle(root.path());
    let bus = PrivateBus::start();
    let (daemon, client) = (bus.connect().await, bus.connect().await);
    let own = rustix::process::geteuid().as_raw();
    let _name = super::serve_bus(&daemon, engine.clone(), own).await.unwrap();
    let instance = an_instance(engine, own);
    let server = daemon.object_server();
    server.at("/one", instance).await.unwrap();
    let contracts = [
        (
            MANAGER_PATH,
            include_str!("../../dbus-interfaces/io.stelia.Isolation1.Manager.xml"),
            10,
        ),
        (
            "/one",
            include_str!("../../dbus-interfaces/io.stelia.Isolation1.Instance.xml"),
            5,
        ),
    ];
    for (path, contract, count) in contracts {
        let interface = match path {
            MANAGER_PATH => "io.stelia.Isolation1.Manager",
            _ => "io.stelia.Isolation1.Instance",
        };
        let methods = methods_with_options(contract);
        assert_eq!(methods.len(), count, "{methods:?}");
        for (method, inputs) in methods {
            let mut body = StructureBuilder::new();
            for input in &inputs {
                body.push_value(argument(input));
            }
            let body = body.build().unwrap();
            let call = client.call_method(
                Some(stelia_api::BUS_NAME),
                path,
                Some(interface),
                method.as_str(),
                &body,
            );
            let Err(zbus::Error::MethodError(name, text, _)) = call.await else {
                panic!("{method} took an option that it does not have")
            };
            let told = format!("{method}: {name} {text:?}");
            assert!(name.as_str().ends_with(".InvalidArgument"), "{told}");
            assert!(text.is_some_and(|text| text.contains("no-such-option")), "{told}");
        }
    }
}

#[tokio::test]
async fn a_pod_reads_the_version_and_no_other_property_of_the_manager() {
    let root = tempfile::tempdir().unwrap();
    let engine = handle(root.path());
    let own = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap();
    let entry_point = EntryPoint::Runner(Arc::new(pidfd));
    let manager = Manager {
        exporter: Exporter::new(engine.clone(), entry_point.clone(), None),
        engine,
        entry_point,
        readings: super::cached_readings::Readings::default(),
    };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let server = connection::Builder::unix_stream(ours)
        .server(Guid::generate())
        .p2p()
        .serve_at(MANAGER_PATH, manager)
        .build();
    let client = connection::Builder::unix_stream(theirs).p2p().build();
    let (server, client) = tokio::join!(server, client);
    let (_server, client) = (server.unwrap(), client.unwrap());
    let get = async |name: &'static str| {
        let (to, interface) = (None::<&str>, Some("org.freedesktop.DBus.Properties"));
        let wanted = ("io.stelia.Isolation1.Manager", name);
        let answer = client.call_method(to, MANAGER_PATH, interface, "Get", &wanted).await?;
        answer.body().deserialize::<zbus::OwnedVariant>()
    };
    let version: String = get("Version").await.unwrap().try_into().unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let contract = include_str!("../../dbus-interfaces/io.stelia.Isolation1.Manager.xml");
    let contract = Node::try_from(contract).unwrap();
    let mut interfaces = contract.interfaces().iter();
    let manager = interfaces
        .find(|one| one.name() == "io.stelia.Isolation1.Manager")
        .unwrap();
    let mut refused = 0;
    for property in manager
        .properties()
        .map(|one| one.name().to_string())
        .filter(|name| *name != "Version")
    {
        let name: &'static str = property.leak();
        assert!(get(name).await.is_err(), "{name}");
        refused += 1;
    }
    assert!(refused >= 7, "{refused}");
}

/// Instance.VCPUs and Manager.Version on the system bus.
#[tokio::test]
async fn a_vcpu_has_its_thread_and_cpu_in_a_property_and_the_manager_its_version() {
    let root = tempfile::tempdir().unwrap();
    let bus = PrivateBus::start();
    let (daemon, client) = (bus.connect().await, bus.connect().await);
    let own = rustix::process::geteuid().as_raw();
    let engine = handle(root.path());
    let _name = super::serve_bus(&daemon, engine.clone(), own).await.unwrap();
    let instance = an_instance(engine, own);
    let thread = |number: u32, id: i32, cpu: Option<u32>| model::PinnedThread {
        thread: stelia_model::record::VcpuThread {
            role: stelia_api::ThreadRole::from(number),
            task: stelia_kernel::proc::TaskId { id, start: 9 },
            cpu,
        },
        guest_node: None,
    };
    let view = model::Instance {
        vcpus: vec![
            thread(0, 70, Some(2)),
            thread(1, 71, None),
            thread(1 << 31, 72, Some(3)),
        ],
        ..crate::engine::registered(instance.pod.clone())
    };
    *instance.shown.write().unwrap() = Arc::new(view);
    daemon.object_server().at("/one", instance).await.unwrap();
    let get = async |path: &'static str, interface: &'static str, name: &'static str| {
        let proxy = zbus::Proxy::new(&client, stelia_api::BUS_NAME, path, interface)
            .await
            .unwrap();
        proxy.get_property::<zbus::OwnedVariant>(name).await.unwrap()
    };
    let vcpus = get("/one", "io.stelia.Isolation1.Instance", "VCPUs").await;
    let vcpus: Vec<(u32, u32, u32)> = vcpus.try_into().unwrap();
    assert_eq!(vcpus, [(0, 70, 2), (1, 71, u32::MAX), (1 << 31, 72, 3)]);
    let version: String = get(MANAGER_PATH, "io.stelia.Isolation1.Manager", "Version")
        .await
        .try_into()
        .unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn a_user_other_than_root_may_look_and_without_polkit_no_more() {
    let root = tempfile::tempdir().unwrap();
    let bus = PrivateBus::start();
    let (daemon, client) = (bus.connect().await, bus.connect().await);
    let another = rustix::process::geteuid().as_raw() + 1;
    let _name = super::serve_bus(&daemon, handle(root.path()), another).await.unwrap();
    let manager = ManagerProxy::new(&client).await.unwrap();
    assert_eq!(manager.list_instances().await.unwrap(), []);
    // A dry run is let through to the engine, which does not run here.
    let dry_run = manager.reconcile(HashMap::from([("dry-run", Variant::from(true))]));
    let answered = tokio::time::timeout(std::time::Duration::from_millis(300), dry_run).await;
    assert!(
        !matches!(&answered, Ok(Err(error)) if error.to_string().contains("NotPermitted")),
        "{answered:?}"
    );
    let Err(zbus::Error::MethodError(name, ..)) = manager.reconcile(HashMap::new()).await else {
        panic!("a pass was made")
    };
    assert_eq!(name.as_str(), "io.stelia.Isolation1.Error.NotPermitted");
    let Err(zbus::Error::MethodError(name, ..)) = manager.reload().await else {
        panic!("the configuration was read again")
    };
    assert_eq!(name.as_str(), "io.stelia.Isolation1.Error.NotPermitted");
}
