//! RebindResources of a node, carried out by a steliad that a test plays.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use stelia_api::client::MoveRow;
use stelia_api::{Error, ErrorKind, MANAGER_PATH};
use stelia_publish::PublishOptions;
use stelia_publish::rebind::Rebinder;
use stelia_publish::rebind::daemon::Daemon;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use zbus::connection::Builder;
use zbus::{Connection, Guid, OwnedObjectPath, OwnedVariant, interface};

/// A machine that is busy with something else needs its time; nothing is measured by this.
const PATIENCE: Duration = Duration::from_secs(300);

/// The daemon: what it answers, and what it was asked.
#[derive(Default)]
struct Played {
    jobs: Vec<Value>,
    /// What Rebind is refused with; `None`: a job begins.
    refusal: Option<Error>,
    /// A job ends as soon as it began.
    ends_at_once: bool,
    deadlines: Vec<u32>,
}

#[derive(Clone, Default)]
struct Manager(Arc<Mutex<Played>>);

fn now_us() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    since.as_micros().try_into().unwrap()
}

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    async fn describe(&self) -> String {
        json!({"node": {"jobs": self.0.lock().unwrap().jobs}, "version": "0.1.0"}).to_string()
    }

    async fn rebind(
        &self,
        scope: &str,
        deadline: u32,
        options: HashMap<String, OwnedVariant>,
    ) -> Result<(OwnedObjectPath, Vec<MoveRow>), Error> {
        assert_eq!((scope, options.len()), ("node", 0));
        let mut played = self.0.lock().unwrap();
        played.deadlines.push(deadline);
        if let Some(refusal) = &played.refusal {
            return Err(refusal.clone());
        }
        let phase = if played.ends_at_once { "Succeed" } else { "Pending" };
        let id = played.begin(phase);
        let path = OwnedObjectPath::try_from(format!("{MANAGER_PATH}/job/{id}")).unwrap();
        Ok((path, Vec::new()))
    }
}

impl Played {
    /// A job begins; its number.
    fn begin(&mut self, phase: &str) -> usize {
        let id = self.jobs.len() + 1;
        let job = json!({"id": id, "scope": "node", "phase": phase, "reason": "", "moves": [], "began_us": now_us(), "ended_us": 0});
        self.jobs.push(job);
        id
    }
}

impl Manager {
    /// An administrator begins a job.
    fn begin(&self) {
        self.0.lock().unwrap().begin("Pending");
    }

    /// How often Rebind was called.
    fn calls(&self) -> usize {
        self.0.lock().unwrap().deadlines.len()
    }

    fn refuse(&self, refusal: Option<Error>) {
        self.0.lock().unwrap().refusal = refusal;
    }

    /// The last job makes a move, and is in this phase then.
    fn moves(&self, phase: &str) {
        let mut played = self.0.lock().unwrap();
        let job = played.jobs.last_mut().unwrap();
        job["moves"] = json!([{"pod": "p", "from": "1,4", "to": "2-3", "gain": "NUMA nodes: 2 -> 1"}]);
        (job["phase"], job["reason"]) = (phase.into(), "as played".into());
    }
}

/// A Rebinder that runs until this is dropped.
struct Running {
    task: JoinHandle<()>,
    _daemon: Connection,
}

impl Running {
    async fn new(client: &Client, manager: &Manager) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Builder::unix_stream(ours).server(Guid::generate()).p2p();
        let server = server.serve_at(MANAGER_PATH, manager.clone()).build();
        let (daemon, connection) = tokio::join!(server, Builder::unix_stream(theirs).p2p().build());
        let options = PublishOptions {
            start_spread: Duration::ZERO,
            ..PublishOptions::new("worker-1")
        };
        let rebinder = Rebinder::new(client.clone(), options, Daemon::at(connection.unwrap()));
        Self {
            task: tokio::spawn(rebinder.run()),
            _daemon: daemon.unwrap(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn objects(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "isolation.stelia.io".into(),
        version: "v1alpha1".into(),
        api_version: "isolation.stelia.io/v1alpha1".into(),
        kind: "RebindResource".into(),
        plural: "rebindresources".into(),
    };
    Api::all_with(client.clone(), &resource)
}

async fn make(client: &Client, name: &str, node: &str, deadline: u32) {
    let spec = json!({"nodeName": node, "rebindAction": "RebindCPU", "deadlineInSeconds": deadline});
    let object = json!({
        "apiVersion": "isolation.stelia.io/v1alpha1", "kind": "RebindResource", "metadata": {"name": name}, "spec": spec,
    });
    let object = serde_json::from_value(object).unwrap();
    objects(client).create(&PostParams::default(), &object).await.unwrap();
}

async fn status(client: &Client, name: &str) -> Value {
    objects(client).get(name).await.unwrap().data["status"].clone()
}

/// Waits until `is` holds of the status, and returns it.
async fn until(client: &Client, name: &str, is: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let now = status(client, name).await;
        if is(&now) {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "{name}: {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn says(status: &Value, part: &str) -> bool {
    status["reason"].as_str().is_some_and(|reason| reason.contains(part))
}

/// Work beside the publisher of node `worker-1`, whose steliad carries everything out at once.
pub async fn beside_a_willing_node<T>(client: &Client, work: impl Future<Output = T>) -> T {
    let manager = Manager::default();
    manager.0.lock().unwrap().ends_at_once = true;
    let _running = Running::new(client, &manager).await;
    work.await
}

/// From the request to each of its ends.
pub async fn rebinds_are_carried_out(client: &Client) {
    let manager = Manager::default();
    let running = Running::new(client, &manager).await;
    let has_job = |status: &Value| status["job"]["id"].is_u64();

    // A publisher that ends while the job runs: the next one goes on with it.
    make(client, "first", "worker-1", 600).await;
    until(client, "first", has_job).await;
    drop(running);
    manager.moves("Pending");
    let running = Running::new(client, &manager).await;
    let moved = until(client, "first", |status| status["moves"][0]["to"] == "2-3").await;
    assert_eq!(moved["phase"], "Pending");
    manager.moves("Succeed");
    let ended = until(client, "first", |status| status["phase"] == "Succeed").await;
    assert_eq!((&ended["reason"], manager.calls()), (&"as played".into(), 1));
    assert_eq!(ended["moves"], moved["moves"]);

    // It waits for its turn, until its deadline; a job of somebody else is not its own.
    manager.refuse(Some(ErrorKind::Busy.because("a rebind job runs already")));
    make(client, "second", "worker-1", 6).await;
    until(client, "second", |status| says(status, "runs already")).await;
    manager.begin();
    let ended = until(client, "second", |status| status["phase"] == "Failed").await;
    assert!(says(&ended, "deadline") && says(&ended, "runs already"), "{ended}");

    // steliad's answer is lost, and so is the publisher: the next one finds the job.
    manager.refuse(Some(ErrorKind::Failed.because("no answer")));
    make(client, "third", "worker-1", 600).await;
    let asked = until(client, "third", |status| says(status, "no answer")).await;
    assert!(asked["askedTimestamp"].is_string(), "{asked}");
    drop(running);
    manager.begin();
    manager.moves("Failed");
    let calls = manager.calls();
    let running = Running::new(client, &manager).await;
    let ended = until(client, "third", |status| status["phase"] == "Failed").await;
    assert_eq!((&ended["reason"], manager.calls()), (&"as played".into(), calls));

    // A job of a daemon that forgot it.
    manager.refuse(None);
    make(client, "fourth", "worker-1", 60).await;
    until(client, "fourth", has_job).await;
    assert!(
        manager
            .0
            .lock()
            .unwrap()
            .deadlines
            .last()
            .is_some_and(|seconds| *seconds <= 60)
    );
    manager.0.lock().unwrap().jobs.clear();
    until(client, "fourth", |status| status["phase"] == "Unknown").await;

    // Where kubelet chooses it is refused at once; what is of another node is another publisher's.
    manager.refuse(Some(ErrorKind::InvalidArgument.because("kubelet chooses the CPUs")));
    make(client, "others", "m", 600).await;
    make(client, "fifth", "worker-1", 600).await;
    let ended = until(client, "fifth", |status| status["phase"] == "Failed").await;
    assert!(says(&ended, "kubelet chooses"), "{ended}");
    assert_eq!(status(client, "others").await, Value::Null);
    drop(running);
}
