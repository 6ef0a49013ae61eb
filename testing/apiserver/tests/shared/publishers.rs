//! Publishers against a server: what they are told, and what must stand.

use serde_json::{Value, json};
use stelia_api::publication::{Publication, VERSION};
use stelia_koordinator::report::ApiVersion;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::testing::large;
use stelia_publish::{PublishOptions, Publisher, Reading, Status};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A node of 256 CPUs and 32 VMs, in the lean profile.
pub fn node() -> Publication {
    let facts = large();
    let pods = facts.allocations.iter().enumerate();
    let pods = pods.map(|(number, one)| {
        json!({
            "uid": one.pod.to_string(), "namespace": "tenant-a", "name": format!("virt-launcher-vm-{number:02}-x7k2p"),
            "container": "compute", "isolation": "vcpus", "state": "isolated", "isolated": true, "reason": "Isolated",
            "message": "no other task runs on this VM's CPUs", "since_us": 1_700_000_000_000_000_u64,
        })
    });
    let object = object(&facts, Profile::Nrt, ApiVersion::V1Alpha2, Method::default());
    let ready = json!({"status": true, "reason": "Ready", "message": ""});
    let told = json!({
        "version": VERSION, "node": facts.name, "ready": ready, "object": object, "pods": pods.collect::<Vec<_>>(), "events": [],
    });
    serde_json::from_value(told).unwrap()
}

/// The same of another node, with other free CPUs.
pub fn told(like: &Publication, name: &str, free: u64) -> Publication {
    let mut told = like.clone();
    told.node = name.to_owned();
    if let Some(object) = &mut told.object {
        object["metadata"]["name"] = name.into();
        *free_cpus(object) = free.to_string().into();
    }
    told
}

/// Of the first zone's CPUs what is free.
pub fn free_cpus(object: &mut Value) -> &mut Value {
    let resources = object["zones"][0]["resources"].as_array_mut().unwrap();
    let cpu = resources.iter_mut().find(|resource| resource["name"] == "cpu");
    &mut cpu.unwrap()["available"]
}

/// A publisher that runs until it is dropped.
pub struct Running {
    readings: watch::Sender<Reading>,
    pub status: watch::Receiver<Status>,
    cancel: CancellationToken,
}

impl Running {
    pub fn new(client: kube::Client, options: PublishOptions, first: Publication) -> Self {
        let publisher = Publisher::new(client, options);
        let (readings, receiver) = watch::channel(Reading::of(first));
        let (status, cancel) = (publisher.status(), CancellationToken::new());
        tokio::spawn(publisher.run(receiver, cancel.clone()));
        Self {
            readings,
            status,
            cancel,
        }
    }

    pub fn tell(&self, publication: Publication) {
        self.readings.send_replace(Reading::of(publication));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
