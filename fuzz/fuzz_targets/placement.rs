//! A node's object, as the API server gives it, and behind a NUL a pod that is to be placed there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_cpus::CpuSet;
use stelia_placement::testing::{vm, vm_with};
use stelia_placement::{By, Cluster, Request, Uid, Verdict};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    let (object, pod) = text.split_once('\0').unwrap_or((text, ""));
    let mut requests = vec![vm(1), vm(3), vm_with(2, Default::default(), false)];
    if let Ok(document) = serde_json::from_str(pod) {
        match Request::of_pod(&document, Default::default()) {
            Ok(request) => requests.push(request),
            Err(error) => fits(&error),
        }
    }
    let mut cluster = Cluster::default();
    if let Err(error) = cluster.put("n", object.as_bytes()) {
        fits(&error);
        assert!(cluster.standing("n").is_none() && cluster.problem("n").is_some());
        return;
    }
    let (shape, standing) = cluster.standing("n").unwrap();
    let (capacity, free) = (shape.capacity(), standing.published.free.clone());
    assert!(free.is_subset(&capacity), "{free:?} of {capacity:?}");
    let mut told = CpuSet::new();
    for (number, request) in requests.into_iter().enumerate() {
        let id = cluster.request(request);
        let mut short = None;
        cluster.verdicts(id, ["n"], |_, verdict| short = Some(verdict));
        let uid = Uid(number as u128 + 1);
        match (short.unwrap(), cluster.reserve("n", uid, id)) {
            (Verdict::Fits(total), Ok(placement)) => {
                same(&total, &placement.score.total, "the score");
                assert!(total <= 1000 && placement.vm_cpus.is_subset(&placement.cpus));
                if placement.by == By::Steliad && placement.cpus == placement.vm_cpus {
                    assert!(placement.cpus.is_subset(&free), "{placement:?}");
                }
                if let Some(cpus) = placement.told {
                    assert!(cpus.is_disjoint(&told), "{cpus:?} twice");
                    told.union_with(&cpus);
                }
            }
            (Verdict::Refused(reason), Err(refusal)) => {
                same(&(reason.by, reason.name), &(refusal.by, refusal.name), "the reason");
                assert!(!refusal.text.is_empty());
            }
            (short, long) => panic!("{short:?}, and in full {long:?}"),
        }
    }
    let before = cluster.standing("n").map(|(_, standing)| standing.clone());
    cluster.put("n", object.as_bytes()).unwrap();
    same(&cluster.standing("n").map(|(_, standing)| standing.clone()), &before, "read again");
});
