//! What a pod may ask for, and on which node.

use std::fs;

use super::{Sleeper, on_allocator, pools, vm};
use crate::support::*;

#[test]
fn words_of_a_pod_only_narrow_what_its_cgroup_says() {
    on_allocator("", || {
        let sure = Sleeper::start("sure", &["--cpus", "2"]);
        let part = Sleeper::start("part", &["--cpu-limit", "1500m"]);
        let burstable = Sleeper::start("burstable", &["--qos-class", "burstable", "--cpu-limit", "2"]);
        let best = Sleeper::start("best", &["--qos-class", "besteffort"]);
        let before = pools();
        for (words, mentions) in [
            ("cpu-bind-policy=ConstrainedBurst", "ConstrainedBurst"),
            ("numa-allocate-strategy=Some", "DistributeEvenly"),
            ("cpu-exclusive-policy=1", "must be a string (s), not u"),
        ] {
            assert_refused(
                &ask_from(&sure.pod, &format!("with|{words}")),
                "InvalidArgument",
                mentions,
            );
        }
        for (who, words, name, mentions) in [
            (&sure, "cpus=3", "InvalidArgument", "3"),
            (&sure, "qos=LSR cpus=8", "InvalidArgument", "8"),
            (&sure, "cpus=0", "InvalidArgument", "cpus"),
            (&sure, "qos=lse", "InvalidArgument", "LSE"),
            (&sure, "qos=LS cpus=1", "InvalidArgument", "cpus"),
            (&sure, "cpu-exclusive-policy=PCPU", "InvalidArgument", "PCPULevel"),
            (&part, "", "NotGuaranteed", "1500m"),
            (&part, "qos=LSR cpus=1", "NotGuaranteed", "1500m"),
            (&burstable, "qos=LSE", "NotGuaranteed", "Burstable"),
            (&burstable, "qos=LSR cpus=1", "NotGuaranteed", "Burstable"),
            (&best, "qos=LSE cpus=1", "NotGuaranteed", "BestEffort"),
            (&best, "qos=LS", "NotGuaranteed", "BestEffort"),
        ] {
            assert_refused(&ask_from(&who.pod, &format!("with|{words}")), name, mentions);
        }
        assert!(scopes().is_empty());
        assert_eq!(pools(), before);
        // Fewer than its limit it may have, and an administrator's word is not bound.
        let fewer = vm("fewer", 2, &["--cpu-limit", "3"], &["--cpus", "2"]);
        assert_eq!(fewer.exclusive().len(), 2);
        assert_eq!(burstable.get("qos=LSE cpus=3").len(), 3);
        burstable.give_back();
        // Whoever asks again for something else is told that it has an instance.
        let own = burstable.get("qos=LSR cpus=1");
        assert_eq!(burstable.get("qos=LSR cpus=1"), own);
        burstable.assert_refused("qos=LSE cpus=1", "InstanceExists", "qos");
    });
}

#[test]
fn where_kubelet_chooses_there_is_nothing_to_ask_for() {
    on_node(|| {
        let pod = Sleeper::start("asking", &["--cpus", "2"]);
        for words in ["qos=LSE", "cpus=2", "cpu-bind-policy=FullPCPUs"] {
            pod.assert_refused(words, "InvalidArgument", "cpu-source");
            assert_refused(
                &ask_from(&pod.pod, &format!("with|{words}")),
                "InvalidArgument",
                "cpu-source",
            );
        }
        assert!(scopes().is_empty());
        assert!(pools().is_null());
        assert_eq!(pod.get(""), pod.pod.exclusive());
        assert!(pod.pod.described()["allocation"].is_null());
    });
}

#[test]
fn a_kubelet_that_may_hold_anything_stops_allocations_and_one_that_is_not_there_does_not() {
    on_allocator("", || {
        let isolated = vm("isolated", 2, &[], &[]);
        let before = assert_isolated(&isolated, 2);
        let pod = Sleeper::start("waiting", &["--cpus", "2"]);
        let ls = Sleeper::start("steady", &["--qos-class", "burstable"]);
        ls.get("");
        let float = ls.float();
        let good = fs::read(STATE).expect(STATE);
        put(STATE, "{\"policyName\":\"stat");
        pod.assert_refused("cpus=2", "KubeletStateUnusable", "kubelet");
        assert_eq!(ls.float(), float);
        fs::remove_file(STATE).expect(STATE);
        assert!(pod.get("cpus=2").is_disjoint(&isolated.exclusive()));
        put(STATE, good);
        reconcile();
        assert_eq!(assert_isolated(&isolated, 2).vcpus, before.vcpus);
    });
}
