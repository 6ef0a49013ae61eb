//! What kubelet, CRI-O and crun make of a pod, recorded for the stand-in's pods of crun.

use super::node::CONTAINERS;
use super::on_crio;
use super::pods::{Manifest, container_id, delete};
use crate::support::pod_recording::{KUBELET_WITH_CRIO, assert_recorded, record_pod};

#[test]
fn a_pod_is_as_recorded() {
    on_crio(|| {
        let pod = Manifest::new("record-guaranteed", &["sleep", "1000000"]).apply();
        let config = format!("{CONTAINERS}/{}/userdata/config.json", container_id(&pod));
        let seen = record_pod("guaranteed", &pod, config.as_ref());
        delete(&pod);
        assert_recorded(KUBELET_WITH_CRIO, &seen);
    });
}
