//! What a user of the host can have the daemon keep, by calls without end.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use serde::Serialize;
use serde::ser::SerializeMap as _;
use stelia_api::client::ManagerProxy;
use stelia_api::{BUS_NAME, ErrorKind, MANAGER_PATH};
use zbus::fdo::RequestNameFlags;
use zbus::{Connection, Fd, MessageStream, Type, Variant};

use super::cached_readings::Readings;
use super::contract_tests::handle;
use super::test_bus::PrivateBus;

/// The daemon and its callers are processes of their own, so that only what the daemon keeps is counted.
const ALONE: &str = "STELIA_TEST_ALONE";
const BUS: &str = "STELIA_TEST_BUS";
const MANAGER: &str = "io.stelia.Isolation1.Manager";
/// Whoever the tests run as, it is not root for the daemon.
fn another_user() -> u32 {
    rustix::process::geteuid().as_raw() + 1
}

async fn served(bus: &PrivateBus, root: &std::path::Path) -> (super::Bus, super::Name) {
    let daemon = bus.connect().await;
    let name = super::serve_bus(&daemon, handle(root), another_user()).await.unwrap();
    (daemon, name)
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// This test once more, in a process of its own.
fn process(test: &str) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    let module = module_path!().split_once("::").unwrap().1;
    process.args(["--exact", &format!("{module}::{test}")]);
    process
}

/// Whether this process runs nothing but this test. If not, one is started that does.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    assert!(process(test).env(ALONE, "1").status().unwrap().success());
    false
}

/// How much more memory in KiB, and how many more descriptors, this process had while the caller ran.
async fn most_while_called(test: &str, bus: &PrivateBus) -> (usize, usize) {
    let mut caller = process(test).env(BUS, bus.address()).spawn().unwrap();
    let before = (resident_kib(), descriptors());
    let mut most = before;
    let status = loop {
        if let Some(status) = caller.try_wait().unwrap() {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        most = (most.0.max(resident_kib()), most.1.max(descriptors()));
    };
    assert!(status.success(), "{status}");
    (most.0 - before.0, most.1 - before.1)
}

async fn connected() -> Option<Connection> {
    let address = std::env::var(BUS).ok()?;
    Some(
        zbus::connection::Builder::address(address.as_str())
            .build()
            .await
            .unwrap(),
    )
}

#[tokio::test]
async fn a_users_large_calls_are_not_kept() {
    if let Some(client) = connected().await {
        let manager = ManagerProxy::new(&client).await.unwrap();
        let request = || HashMap::from([("qos", Variant::from("LSE")), ("cpus", Variant::from(2u32))]);
        let calls =
            (0..100).map(|_| manager.evaluate_placement((0..1024).map(|_| request()).collect(), HashMap::new()));
        let answers = tokio::time::timeout(Duration::from_secs(60), join_all(calls))
            .await
            .unwrap();
        let busy = answers.iter().filter(|answer| is(answer, "Busy")).count();
        assert!(
            busy > 50,
            "{busy} of {} were told that the daemon is busy",
            answers.len()
        );
        return;
    }
    if !is_alone("a_users_large_calls_are_not_kept") {
        return;
    }
    let (root, bus) = (tempfile::tempdir().unwrap(), PrivateBus::start());
    let _served = served(&bus, root.path()).await;
    let (kib, _) = most_while_called("a_users_large_calls_are_not_kept", &bus).await;
    assert!(kib < 16 << 10, "{kib} KiB");
}

fn is<T>(answer: &zbus::Result<T>, kind: &str) -> bool {
    matches!(answer, Err(zbus::Error::MethodError(name, ..)) if name.ends_with(kind))
}

/// A dictionary with a name many times, as the wire allows: the last counts.
struct Repeated<'a>(&'a std::fs::File, usize);

impl Serialize for Repeated<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_map(None)?;
        for _ in 0..16 {
            entries.serialize_entry("node-name", &Variant::from(Fd::from(self.0.as_fd())))?;
        }
        entries.serialize_entry("node-name", &Variant::from("n".repeat(self.1)))?;
        entries.end()
    }
}

impl Type for Repeated<'_> {
    const SIGNATURE: &'static zbus::wire::Signature = <HashMap<&str, Variant<'_>> as Type>::SIGNATURE;
}

#[tokio::test]
async fn neither_descriptors_nor_a_body_of_megabytes_are_kept_and_both_are_answered() {
    if connected().await.is_some() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut calls = Vec::new();
        for length in [1000, 256 << 10, 4 << 20, 8 << 20] {
            let client = connected().await.unwrap();
            for _ in 0..20 {
                let (client, file) = (client.clone(), file.try_clone().unwrap());
                calls.push(async move {
                    let body = (Repeated(&file, length),);
                    client
                        .call_method(Some(BUS_NAME), MANAGER_PATH, Some(MANAGER), "NodeTopology", &body)
                        .await
                });
            }
        }
        let answers = tokio::time::timeout(Duration::from_secs(60), join_all(calls))
            .await
            .unwrap();
        assert!(
            answers.iter().all(|answer| is(answer, "InvalidArgument")),
            "{answers:?}"
        );
        return;
    }
    let name = "neither_descriptors_nor_a_body_of_megabytes_are_kept_and_both_are_answered";
    if !is_alone(name) {
        return;
    }
    let (root, bus) = (tempfile::tempdir().unwrap(), PrivateBus::start());
    let _served = served(&bus, root.path()).await;
    let (kib, descriptors) = most_while_called(name, &bus).await;
    assert!(
        kib < 8 << 10 && descriptors < 100,
        "{kib} KiB, {descriptors} descriptors"
    );
}

#[tokio::test]
async fn callers_who_wait_for_a_reading_are_few() {
    let readings = Readings::default();
    let (begin, began) = std::sync::mpsc::channel::<()>();
    let slow = readings.clone();
    let slow = tokio::spawn(async move { slow.read(move |_| began.recv().or(Ok(()))).await });
    tokio::task::yield_now().await;
    let waiting: Vec<_> = (0..1000)
        .map(|_| {
            let readings = readings.clone();
            tokio::spawn(async move { readings.read(|_| Ok(())).await })
        })
        .collect();
    let refused = async {
        while waiting.iter().filter(|one| one.is_finished()).count() < 800 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
    drop(begin);
    slow.await.unwrap().unwrap();
    for one in waiting {
        let answer = one.await.unwrap();
        assert!(answer.is_ok() || answer.map_err(|error| error.kind) == Err(ErrorKind::Busy));
    }
}

/// polkit has questions of the daemon that it does not answer, and those who ask for more are told. A caller that leaves takes its question back.
#[tokio::test]
async fn a_polkit_that_does_not_answer_has_few_questions() {
    let (root, bus) = (tempfile::tempdir().unwrap(), PrivateBus::start());
    let _served = served(&bus, root.path()).await;
    let polkit: Connection = zbus::connection::Builder::address(bus.address()).build().await.unwrap();
    let flags = RequestNameFlags::DO_NOT_QUEUE;
    polkit
        .request_name_with_flags("org.freedesktop.PolicyKit1", flags)
        .await
        .unwrap();
    let mut heard = MessageStream::from(&polkit);
    let client: Connection = zbus::connection::Builder::address(bus.address()).build().await.unwrap();
    let manager = ManagerProxy::new(&client).await.unwrap();
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move { manager.reload().await })
        })
        .collect();
    let refused = async {
        while calls.iter().filter(|call| call.is_finished()).count() < 90 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
    // Whoever needs no question is answered meanwhile.
    let of_version = ("io.stelia.Isolation1.Manager", "Version");
    let properties = Some("org.freedesktop.DBus.Properties");
    let version = bus
        .connect()
        .await
        .call_method(Some(BUS_NAME), MANAGER_PATH, properties, "Get", &of_version)
        .await;
    assert!(version.is_ok(), "{version:?}");
    let (mut asked, mut taken_back) = (0, 0);
    for call in &calls {
        call.abort();
    }
    client.close().await.unwrap();
    let all_taken_back = async {
        while asked == 0 || taken_back < asked {
            let message = heard.next().await.unwrap().unwrap();
            match message.header().member().map(|member| member.as_str()) {
                Some("CheckAuthorization") => asked += 1,
                Some("CancelCheckAuthorization") => taken_back += 1,
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_taken_back)
        .await
        .unwrap();
    assert!(asked <= 8, "{asked} questions");
}
