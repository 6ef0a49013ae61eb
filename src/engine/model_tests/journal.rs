//! The messages for operators. `start` holds each that any of these tests causes to the catalog.

use std::collections::BTreeMap;

use stelia_kubelet::PodName;

use super::*;
use crate::journal;
use crate::journal::catalog_tests::{Message, logged};

/// The messages with this pod's name, by their ids.
fn of_pod(name: &PodName) -> BTreeMap<String, Message> {
    let named =
        |message: &Message| (message.namespace.as_str(), message.name.as_str()) == (name.namespace(), name.name());
    let all = logged().into_iter().filter(named);
    all.map(|message| (message.id.clone(), message)).collect()
}

#[tokio::test]
async fn every_message_of_an_instance_has_its_pods_name_also_when_it_is_gone() {
    let mut node = Node::new();
    let (leaves, ends) = (
        PodName::new("team-a", "leaves").unwrap(),
        PodName::new("team-b", "ends").unwrap(),
    );
    for (number, cpus, name) in [(1, "2-3", &leaves), (2, "4-5", &ends)] {
        let pod = node.pod(number, cpus);
        node.model.name_pod(&pod, name).unwrap();
        node.register(&pod).await.unwrap();
        if number == 1 {
            node.model.meddle(&float(&pod), File::Cpus, "0").unwrap();
            node.reconcile().await;
            node.handle.deregister(pod.uid.clone()).await.unwrap();
        } else {
            node.model.kill_pod(&pod).unwrap();
            node.catch_up().await;
        }
        let told = of_pod(name);
        let ids: &[&str] = match number {
            1 => &[journal::REGISTERED, journal::DRIFT, journal::DEREGISTERED],
            _ => &[journal::REGISTERED, journal::GONE],
        };
        for id in ids {
            let message = told.get(*id).unwrap_or_else(|| panic!("{id}: {told:?}"));
            let named = format!("pod {name} ({})", pod.uid);
            assert!(message.text.contains(&named), "{message:?}");
        }
    }
    // Nobody's message has another's name.
    let foreign = |message: &&Message| message.text.contains("team-a/leaves") && message.name != "leaves";
    assert_eq!(logged().iter().filter(foreign).count(), 0);
}

#[tokio::test]
async fn the_catalog_names_only_fields_that_are_logged_with_the_message() {
    let mut node = Node::new();
    let (pod, _qemu) = node.isolated(1, "2-3").await;
    node.model.meddle(&float(&pod), File::Cpus, "0").unwrap();
    node.reconcile().await;
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    std::fs::write(node.settings.kubelet_root.join("cpu_manager_state"), "{").unwrap();
    node.reconcile().await;
    let logged: Vec<String> = logged().into_iter().map(|message| message.id).collect();
    for id in [
        journal::REGISTERED,
        journal::ISOLATED,
        journal::PASS,
        journal::DRIFT,
        journal::REPAIRED,
        journal::DEREGISTERED,
        journal::KUBELET_REFUSED,
    ] {
        assert!(logged.iter().any(|logged| logged == id), "{id} was not logged");
    }
}
