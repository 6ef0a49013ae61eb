//! What kubelet, CRI-O and crun make of a pod, recorded for the stand-in's pods of crun.

use super::on_crio;
use super::pods::{Manifest, delete, userdata};
use crate::support::pod_recording::{KUBELET_WITH_CRIO, assert_recorded, record_pod};

#[test]
fn a_pod_is_as_recorded() {
    on_crio(|| {
        let pod = Manifest::new("record-guaranteed", &["sleep", "1000000"]).apply();
        let seen = record_pod("guaranteed", &pod, &userdata(&pod).join("config.json"));
        delete(&pod);
        assert_recorded(KUBELET_WITH_CRIO, &seen);
    });
}
