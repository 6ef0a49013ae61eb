//! Pods that wait until a node has room.

use super::*;

impl Cluster {
    /// When a pod was told last to be tried again.
    pub(super) fn retried(&self, name: &str) -> Option<String> {
        let pod = self.pod(name);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut conditions = conditions.iter();
        let told = conditions.find(|one| one["type"] == "isolation.stelia.io/Retry")?;
        assert!(told["status"] == "True" && told["reason"] == "RoomOnNode");
        Some(told["message"].as_str().unwrap().to_owned())
    }
}

impl Instance {
    /// As a filter call about all nodes does. How many would take it.
    fn filter(&self, cluster: &Cluster, name: &str) -> usize {
        self.filter_offered(cluster, name, &["steliad", "kubelet"])
    }

    fn filter_offered(&self, cluster: &Cluster, name: &str, offered: &[&str]) -> usize {
        let asked = self.placer.now();
        let pod = cluster.pod(name);
        let request = self.placer.request(&pod, None).unwrap().unwrap();
        let pod = crate::apiserver::parse::pod_of(&pod).unwrap();
        let answers = self.placer.evaluate_nodes(&request, offered).into_iter();
        let fit = answers.filter(|answer| matches!(answer, NodeVerdict::Fits(_))).count();
        if fit == 0 {
            self.placer.add_waiting(&pod, request, asked, offered);
        }
        fit
    }

    fn retries(&self) -> u64 {
        self.placer.counts().retried.load(Ordering::Relaxed)
    }
}

/// A cluster whose nodes are full: 12 of 14 CPUs of each NUMA node are a VM's.
fn full() -> Cluster {
    let mut cluster = Cluster::new();
    for number in [901, 902] {
        cluster.machines[0].register(&uid(number, 0), 12, None).unwrap();
        let low = pod("low", &uid(number, 0), 12, true);
        cluster.machines[1].admit(&uid(number, 0), &low).unwrap();
    }
    cluster.publish(0);
    cluster.publish(1);
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_is_told_once_as_soon_as_a_node_has_room_for_it() {
    let mut cluster = full();
    let instance = cluster.ready(1).await;
    let pods = [("fits", 1, 12), ("larger", 2, 20), ("bound", 3, 12)];
    for (name, number, cpus) in pods {
        cluster.make(name, number, cpus);
        assert_eq!(instance.filter(&cluster, name), 0);
    }
    // Another scheduler places one of them.
    cluster.change_pod("bound", |pod| pod["spec"]["nodeName"] = "worker".into());
    assert_eq!(instance.placer.waiting(), 3);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((instance.retries(), instance.placer.waiting()), (0, 2));

    // A VM ends, and nothing happens that a scheduler watches.
    cluster.machines[0].end(&uid(901, 0));
    cluster.publish(0);
    a_second().await;
    let told = cluster.retried("fits").expect("told");
    assert!(cluster.retried("larger").is_none() && cluster.retried("bound").is_none());
    // Once a change, also if the scheduler is long in coming back.
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((instance.retries(), cluster.retried("fits")), (1, Some(told)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_sample_of_the_nodes_refused_is_told_of_the_others() {
    let mut cluster = full();
    cluster.machines[0].end(&uid(901, 0));
    cluster.publish(0);
    let instance = cluster.ready(1).await;
    // A new leader checks all nodes once.
    a_second().await;
    cluster.make("vm", 1, 12);
    // Fewer nodes than a sample has are all that the scheduler's own filters left.
    assert_eq!(instance.filter_offered(&cluster, "vm", &["kubelet"]), 0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(instance.retries(), 0);

    let full: Vec<String> = (1..100).map(|number| format!("full-{number}")).collect();
    let mut sample: Vec<&str> = full.iter().map(String::as_str).collect();
    sample.push("kubelet");
    assert_eq!(instance.filter_offered(&cluster, "vm", &sample), 0);
    a_second().await;
    assert_eq!((instance.retries(), cluster.retried("vm").is_some()), (1, true));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_has_the_pods_tried_again_that_a_former_one_refused() {
    let mut cluster = full();
    cluster.make("vm", 1, 12);
    let waits = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    cluster.change_pod("vm", |pod| pod["status"]["conditions"] = waits);
    cluster.make("new", 2, 12);
    // The room is there before anybody leads.
    cluster.machines[1].end(&uid(902, 0));
    cluster.publish(1);
    let instance = cluster.ready(1).await;
    a_second().await;
    assert_eq!((instance.retries(), cluster.retried("vm").is_some()), (1, true));
    // The scheduler was not asked about it yet.
    assert!(cluster.retried("new").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_told_is_told_again_and_a_pod_that_is_gone_is_forgotten() {
    let mut cluster = full();
    let instance = cluster.ready(1).await;
    cluster.make("vm", 1, 12);
    assert_eq!(instance.filter(&cluster, "vm"), 0);
    cluster.fail("patch", "pods/status", 3, Fault::Status(503));
    cluster.machines[0].end(&uid(901, 0));
    cluster.publish(0);
    // Pauses of 1, 2 and 4 s.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(cluster.retried("vm").is_none(), "it is not told again at once");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(cluster.retried("vm").is_some());
    cluster.server.remove("", "pods", "vms", "vm");
    a_second().await;
    assert_eq!(instance.placer.waiting(), 0);
}
