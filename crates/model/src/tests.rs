//! What is read of what was written, and what is refused.

use serde_json::{Value, json};
use stelia_api::{Reason, ReasonCode, State};
use stelia_kubelet::PodUid;

use super::*;

const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

fn instance() -> Value {
    serde_json::to_value(Instance::default()).unwrap()
}

#[test]
fn a_member_that_is_not_known_is_ignored_and_a_word_that_is_not_known_is_an_error_that_names_it() {
    let mut sent = instance();
    sent["sealed_us"] = json!(5);
    assert_eq!(serde_json::from_value::<Instance>(sent).unwrap(), Instance::default());
    for (member, word) in [
        ("state", "sealed"),
        ("float_reason", "moonlight"),
        ("pinned_reason", "weather"),
        ("placement", "random"),
    ] {
        let mut sent = instance();
        sent[member] = json!(word);
        let error = serde_json::from_value::<Instance>(sent).unwrap_err().to_string();
        assert!(error.contains(word), "{member}: {error}");
    }
}

#[test]
fn a_member_that_is_missing_is_an_error() {
    for member in ["state", "exclusive", "vcpus", "degraded"] {
        let mut sent = instance();
        sent.as_object_mut().unwrap().remove(member).unwrap();
        let error = serde_json::from_value::<Instance>(sent).unwrap_err().to_string();
        assert_eq!(error, format!("missing field `{member}`"));
    }
}

#[test]
fn an_instance_is_read_as_it_was_written_but_for_what_json_does_not_have() {
    let pod = PodUid::parse(POD).unwrap();
    let written = Instance {
        pod: pod.clone(),
        state: State::Isolated,
        degraded: vec![
            Reason::of(&pod, ReasonCode::CpusOffline, "CPUs 3 are offline"),
            Reason::of_node(ReasonCode::NotWatched, "no inotify"),
        ],
        vcpus: vec![PinnedThread::default()],
        ..Instance::default()
    };
    let json = serde_json::to_string(&written).unwrap();
    let mut read: Instance = serde_json::from_str(&json).unwrap();
    assert_eq!(read.degraded[0].pod, None, "JSON does not name it");
    read.degraded[0].pod = Some(pod);
    assert_eq!(read, written);
}

#[test]
fn the_last_former_vms_are_remembered() {
    let mut node = Node::default();
    for ended_us in 1..=65 {
        let was = Instance {
            exclusive: "2-3".parse().unwrap(),
            ..Instance::default()
        };
        node.remember(&was, ended_us);
    }
    let (first, last) = (&node.former[0], &node.former[63]);
    assert_eq!((node.former.len(), first.ended_us, last.ended_us), (64, 65, 2));
}
