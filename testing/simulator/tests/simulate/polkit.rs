//! What other users than root may do, and what polkit permits.

use std::collections::HashMap;

use zbus::OwnedVariant;

use super::*;

/// A stand-in for polkit, which permits one action.
struct Authority(&'static str);

#[zbus::interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Authority {
    fn check_authorization(
        &self,
        subject: (String, HashMap<String, OwnedVariant>),
        action: &str,
        _details: HashMap<String, String>,
        _flags: u32,
        _cancellation: &str,
    ) -> (bool, bool, HashMap<String, String>) {
        let permitted = subject.0 == "system-bus-name" && subject.1.contains_key("name") && action == self.0;
        (permitted, false, HashMap::new())
    }
}

/// Runs on a thread of its own until it is dropped.
struct Polkit {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Polkit {
    fn start(address: &str, permitted: &'static str) -> Self {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let address = address.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("runtime").block_on(async {
                let builder = zbus::connection::Builder::address(address.as_str());
                let builder = builder.serve_at("/org/freedesktop/PolicyKit1/Authority", Authority(permitted));
                let bus = builder.name("org.freedesktop.PolicyKit1").build().await.expect("a bus");
                ready.send(()).expect("the test waits");
                let _ = stopped.await;
                drop(bus);
            });
        });
        is_ready.recv().expect("polkit");
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Polkit {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

impl Simulation {
    /// The outcome for a user who is not root: all output, and whether the command succeeded.
    pub(super) fn as_nobody(&self, arguments: &[&str]) -> (bool, String) {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        self.call(&nobody, arguments)
    }

    pub(super) fn as_root(&self, arguments: &[&str]) -> (bool, String) {
        self.call(&[], arguments)
    }

    /// `busctl call` as the user of setpriv's arguments.
    fn call(&self, who: &[&str], arguments: &[&str]) -> (bool, String) {
        let call = [
            "busctl",
            "--system",
            "--expect-reply=yes",
            "call",
            "io.stelia.Isolation1",
        ];
        let out = self.run("setpriv", &[who, &call, arguments].concat());
        let text = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn reconcile_as_nobody(&self) -> (bool, String) {
        self.as_nobody(&[OBJECT, MANAGER, "Reconcile", "a{sv}", "0"])
    }
}

#[test]
fn other_users_read_and_what_changes_something_is_polkits_to_permit() {
    let simulation = Simulation::start(&scenario(""));
    let (done, text) = simulation.as_nobody(&[OBJECT, MANAGER, "ListInstances"]);
    assert!(done && text.contains(VM), "{text}");
    // Without polkit the answer is no.
    let (done, text) = simulation.reconcile_as_nobody();
    assert!(!done && text.contains("polkit cannot be asked"), "{text}");
    // A dry run changes nothing.
    let (done, text) = simulation.as_nobody(&[OBJECT, MANAGER, "Reconcile", "a{sv}", "1", "dry-run", "b", "true"]);
    assert!(done && text.contains("plan"), "{text}");
    // The bus's policy denies unknown members before they reach the daemon.
    let (done, text) = simulation.as_nobody(&[OBJECT, MANAGER, "Explode"]);
    assert!(
        !done && (text.contains("Access denied") || text.contains("rejected")),
        "{text}"
    );
    let (done, text) = simulation.as_nobody(&[
        OBJECT,
        "org.freedesktop.DBus.Properties",
        "Set",
        "ssv",
        MANAGER,
        "X",
        "s",
        "y",
    ]);
    assert!(
        !done && (text.contains("Access denied") || text.contains("rejected")),
        "{text}"
    );

    let polkit = Polkit::start(&simulation.address, "io.stelia.Isolation1.maintain");
    let (done, text) = simulation.reconcile_as_nobody();
    assert!(done && text.contains("pass"), "{text}");
    // Another action is asked about separately.
    let (done, text) = simulation.as_nobody(&[OBJECT, MANAGER, "Deregister", "sa{sv}", VM, "0"]);
    assert!(!done && text.contains("manage-instances"), "{text}");
    assert!(simulation.ctl(&["--no-legend", "list"]).contains(VM));
    drop(polkit);
}
