//! A node's object, as the API server gives it, and behind a NUL a pod that is to be placed there.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use stelia_cpus::CpuSet;
use stelia_kubelet::Uid;
use stelia_placement_rules::request::SharedRequest;
use stelia_placement_rules::{Cluster, NodeVerdict, Request};
use steliad_fuzz::{fits, same};

/// A VM of so many CPUs, whose runner follows what a scheduler chose or not.
fn vm(cpus: u32, option: &str) -> Value {
    let limits = json!({"cpu": cpus.to_string(), "memory": "1Gi", "stelia.io/vm": "1"});
    let vm = json!({"name": "vm", "command": ["stelia-runner", option], "resources": {"limits": limits}});
    json!({"metadata": {}, "spec": {"containers": [vm]}})
}

fuzz_target!(|text: &str| {
    let (object, pod) = text.split_once('\0').unwrap_or((text, ""));
    let ours = [vm(1, "--resource-status=f"), vm(3, "--resource-status=f"), vm(2, "run")];
    let ours = ours.map(|document| Request::of_pod(&document, Default::default()).unwrap());
    let mut requests = ours.to_vec();
    if let Ok(document) = serde_json::from_str(pod) {
        match Request::of_pod(&document, Default::default()) {
            Ok(request) => requests.push(request),
            Err(error) => fits(&error),
        }
    }
    let mut cluster = Cluster::default();
    if let Err(error) = cluster.put("n", object.as_bytes()) {
        fits(&error);
        assert!(cluster.forecast("n").is_none() && cluster.problem("n").is_some());
        return;
    }
    let (shape, forecast) = cluster.forecast("n").unwrap();
    let (capacity, free) = (shape.capacity(), forecast.published.free.clone());
    assert!(free.is_subset(&capacity), "{free:?} of {capacity:?}");
    // Whoever has CPUs there, and somebody who has not, with what he asked for or without.
    let mut gone: HashMap<Uid, Option<SharedRequest>> = cluster.pods("n").iter().map(|(uid, _)| (*uid, None)).collect();
    let nobody: HashMap<Uid, Option<SharedRequest>> = [(Uid(u128::MAX), None)].into();
    let mut told = CpuSet::new();
    for (number, request) in requests.into_iter().enumerate() {
        let request = cluster.request(request);
        gone.insert(Uid(u128::MAX - 1), Some(request.clone()));
        gone.values_mut()
            .for_each(|asked| *asked = Some(request.clone()).filter(|_| number % 2 == 0));
        let without = |pods| cluster.without("n", &request, pods).and_then(|node| node.evaluate());
        let _ = without(&gone);
        let unknown = without(&nobody);
        let known = cluster.explain("n", &request);
        same(&unknown, &known, "without a pod that is not there");
        let mut short = None;
        cluster.verdicts(&request, ["n"], |_, verdict| short = Some(verdict));
        let uid = Uid(number as u128 + 1);
        match (short.unwrap(), cluster.reserve("n", uid, &request)) {
            (NodeVerdict::Fits(total), Ok(placement)) => {
                same(&total, &placement.score.total, "the score");
                let outcome = &placement.outcome;
                assert!(total <= 1000 && outcome.vm_cpus.is_subset(&outcome.cpus));
                if outcome.allocation.is_some() && outcome.cpus == outcome.vm_cpus {
                    assert!(outcome.cpus.is_subset(&free), "{placement:?}");
                }
                if let Some(cpus) = placement.assigned_cpus {
                    assert!(cpus.is_disjoint(&told), "{cpus:?} twice");
                    told.union_with(&cpus);
                }
            }
            (NodeVerdict::Refused(reason), Err(refusal)) => {
                same(&reason, &refusal.name, "the reason");
                assert!(!refusal.text.is_empty());
            }
            (short, long) => panic!("{short:?}, and in full {long:?}"),
        }
    }
    let before = cluster.forecast("n").map(|(_, standing)| standing.clone());
    cluster.put("n", object.as_bytes()).unwrap();
    same(
        &cluster.forecast("n").map(|(_, standing)| standing.clone()),
        &before,
        "read again",
    );
});
