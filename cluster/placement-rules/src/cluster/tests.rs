use proptest::collection::vec;
use proptest::prelude::*;
use stelia_cpus::testing::Shape;
use stelia_koordinator::report::Facts;
use stelia_koordinator::report::testing::{facts, large};

use super::*;
use crate::testing::{allocate, published, uid, vm};

/// A node of 256 CPUs on which steliad chooses, with these many cores of each NUMA node in use by one pod.
fn node(used: [u32; 2]) -> Facts {
    let mut facts = large();
    facts.kubelet.cpu_policy = "none".to_owned();
    let allocator = facts.allocator.as_mut().unwrap();
    allocator.held = Default::default();
    facts.exclusive = CpuSet::new();
    facts.allocations.clear();
    for (socket, cores) in (0u32..).zip(used) {
        // The first four cores of the first one are reserved.
        let first = [4u32, 64][socket as usize];
        let cpus: CpuSet = (first..first + cores).flat_map(|cpu| [cpu, cpu + 128]).collect();
        if !cpus.is_empty() {
            allocate(&mut facts, uid(u128::from(socket) + 1), &cpus);
        }
    }
    facts
}

fn put(cluster: &mut Cluster, name: &str, facts: &Facts) -> Vec<Uid> {
    cluster.put(name, published(facts).as_bytes()).unwrap()
}

/// A node `n` in such use, and a VM of eight CPUs.
fn one_node(used: [u32; 2]) -> (Cluster, SharedRequest) {
    let mut cluster = Cluster::default();
    put(&mut cluster, "n", &node(used));
    let request = cluster.request(vm(8));
    (cluster, request)
}

fn pod(number: u128) -> Uid {
    Uid::of(&uid(number))
}

fn verdict(cluster: &mut Cluster, request: &SharedRequest, name: &str) -> NodeVerdict {
    let mut told = NodeVerdict::Refused("");
    cluster.verdicts(request, [name], |_, verdict| told = verdict);
    told
}

fn fits(cluster: &mut Cluster, request: &SharedRequest, name: &str) -> bool {
    matches!(verdict(cluster, request, name), NodeVerdict::Fits(_))
}

#[test]
fn nodes_in_the_same_state_are_asked_once() {
    let mut cluster = Cluster::default();
    for number in 0..10 {
        put(&mut cluster, &format!("node-{number}"), &node([8, 0]));
    }
    put(&mut cluster, "other", &node([4, 4]));
    assert_eq!((cluster.len(), cluster.variety()), (11, (2, 1)));
    let request = cluster.request(vm(8));
    let told = ["node-0", "node-9", "none"].map(|name| verdict(&mut cluster, &request, name));
    assert!(matches!(told[0], NodeVerdict::Fits(_)) && told[0] == told[1]);
    assert_eq!(told[2], NodeVerdict::Refused("NoObject"));
    cluster.remove("other");
    assert_eq!((cluster.len(), cluster.variety().0), (10, 1));
}

#[test]
fn a_reservation_counts_until_the_object_has_the_pod() {
    // Eight CPUs are free.
    let (mut cluster, request) = one_node([60, 60]);
    let [pod, other] = [77, 78].map(pod);
    let cpus = cluster.reserve("n", pod, &request).unwrap().assigned_cpus.unwrap();
    assert_eq!(cpus.len(), 8);
    let [(coming, arrival)] = cluster.on_their_way("n") else {
        panic!("one pod")
    };
    assert_eq!((*coming, arrival.cpus.as_ref()), (pod, Some(&cpus)));
    assert_eq!(cluster.reserve("n", other, &request).unwrap_err().name, "NotAllocated");
    // An object that does not know of it changes nothing.
    assert_eq!(put(&mut cluster, "n", &node([60, 60])), []);
    assert!(cluster.reserve("n", other, &request).is_err());
    // One that does ends it.
    let mut arrived = node([60, 60]);
    allocate(&mut arrived, uid(77), &cpus);
    assert_eq!(put(&mut cluster, "n", &arrived), [pod]);
    assert_eq!(cluster.on_their_way("n"), []);
    assert!(cluster.shows_pod("n", pod));
    assert!(cluster.pods("n").contains(&(pod, cpus)));
    // The pod ends, and there is room again.
    put(&mut cluster, "n", &node([60, 60]));
    assert!(cluster.reserve("n", other, &request).is_ok());
    assert!(cluster.release("n", other) && !cluster.release("n", other));
    assert!(fits(&mut cluster, &request, "n"));
}

#[test]
fn a_pod_whose_room_others_took_is_left_out() {
    let (mut cluster, request) = one_node([60, 60]);
    cluster.reserve("n", pod(77), &request).unwrap();
    put(&mut cluster, "n", &node([60, 64]));
    let (_, forecast) = cluster.forecast("n").unwrap();
    assert_eq!((forecast.arrivals.len(), &forecast.expected), (0, &forecast.published));
    assert!(cluster.release("n", pod(77)));
}

#[test]
fn a_node_whose_object_cannot_be_used_is_refused_by_its_name_and_keeps_who_is_on_the_way() {
    let (mut cluster, request) = one_node([60, 60]);
    cluster.reserve("n", pod(77), &request).unwrap();
    assert!(cluster.put("n", b"{}").is_err());
    let told = verdict(&mut cluster, &request, "n");
    assert_eq!(told, NodeVerdict::Refused("ObjectMalformed"));
    assert_eq!(cluster.explain("n", &request).unwrap_err().name, "ObjectMalformed");
    assert!(cluster.problem("n").is_some());
    put(&mut cluster, "n", &node([60, 60]));
    assert_eq!(cluster.on_their_way("n").len(), 1);
    assert!(!fits(&mut cluster, &request, "n"));
}

/// The node's answer once these pods have left: the CPUs, or why not.
fn without(cluster: &Cluster, name: &str, request: &SharedRequest, gone: &[u128]) -> Result<CpuSet, &'static str> {
    let gone = gone.iter().map(|number| (pod(*number), None)).collect();
    let answer = cluster.without(name, request, &gone).and_then(|node| node.evaluate());
    answer
        .map(|placement| placement.outcome.cpus)
        .map_err(|refusal| refusal.name)
}

#[test]
fn a_pod_finds_room_without_those_that_leave_and_no_others() {
    let (mut cluster, request) = one_node([0, 0]);
    let mut full = node([0, 0]);
    let [first, second]: [CpuSet; 2] = ["4-63,132-191", "64-126,192-254"].map(|cpus| cpus.parse().unwrap());
    allocate(&mut full, uid(1), &first);
    allocate(&mut full, uid(2), &second);
    put(&mut cluster, "n", &full);
    let without = |name, gone: &[u128]| without(&cluster, name, &request, gone);
    assert_eq!(without("n", &[]), Err("NotAllocated"));
    assert_eq!(without("n", &[77, 78]), Err("NotAllocated"));
    assert!(without("n", &[1, 77]).unwrap().is_subset(&first));
    assert!(without("n", &[2]).unwrap().is_disjoint(&first));
    assert_eq!(without("none", &[]), Err("NoObject"));
    // Nothing has left.
    assert_eq!(cluster.explain("n", &request).unwrap_err().name, "NotAllocated");
}

#[test]
fn a_pod_that_is_on_its_way_gives_back_what_it_was_promised() {
    let (mut cluster, request) = one_node([60, 60]);
    let promised = cluster.reserve("n", pod(77), &request).unwrap();
    assert!(without(&cluster, "n", &request, &[78]).is_err());
    assert_eq!(without(&cluster, "n", &request, &[77]), Ok(promised.outcome.cpus));
}

#[test]
fn a_question_is_of_the_moment_of_the_look_and_of_no_other_state() {
    let mut cluster = Cluster::default();
    for name in ["a", "b", "c"] {
        put(&mut cluster, name, &node([8, 8]));
    }
    let request = cluster.request(vm(8));
    let names = ["a", "b", "c", "none"];
    let mut question = cluster.question(&request, names);
    // Equal nodes are one state.
    assert_eq!(question.unanswered(), 1);
    // What happens while it is worked out: a is full, b has another state's place, c is gone.
    put(&mut cluster, "a", &node([60, 64]));
    put(&mut cluster, "b", &node([59, 64]));
    cluster.remove("c");
    question.evaluate();
    assert_eq!(question.unanswered(), 0);
    let told: Vec<NodeVerdict> = question.verdicts().collect();
    let have_room = told.iter().filter(|verdict| matches!(verdict, NodeVerdict::Fits(_)));
    assert_eq!((have_room.count(), told[3]), (3, NodeVerdict::Refused("NoObject")));
    cluster.keep_answers(&question);
    for name in ["a", "b"] {
        let now = verdict(&mut cluster, &request, name);
        assert_eq!(now, NodeVerdict::Refused("NotAllocated"));
    }
    // What was learnt is not worked out again.
    assert_eq!(cluster.question(&request, ["a", "b", "none"]).unanswered(), 0);
    // One that was not worked out teaches nothing, and tells of no node that it fits.
    put(&mut cluster, "c", &node([8, 8]));
    let question = cluster.question(&request, ["c"]);
    cluster.keep_answers(&question);
    assert!(matches!(question.verdicts().next(), Some(NodeVerdict::Refused(_))));
    assert_eq!(cluster.question(&request, ["c"]).unanswered(), 1);
}

#[test]
fn requests_that_nobody_asks_give_way() {
    let (mut cluster, _) = one_node([8, 8]);
    let first = cluster.request(vm(2));
    assert!(fits(&mut cluster, &first, "n"));
    assert_eq!(cluster.question(&first, ["n"]).unanswered(), 0);
    for memory in 1..=requests::MAX_REQUESTS as u64 {
        let mut request = vm(240);
        request.pod = crate::testing::pod(240_000, memory);
        let other = cluster.request(request);
        assert!(!fits(&mut cluster, &other, "n"));
    }
    // Its answers are forgotten, and none of another request's is taken for them.
    assert_eq!(cluster.question(&first, ["n"]).unanswered(), 1);
    assert!(fits(&mut cluster, &first, "n"));
    let again = cluster.request(vm(2));
    assert_ne!(again, first);
    assert!(fits(&mut cluster, &again, "n"));
    assert_eq!(cluster.request(vm(2)), again);
}

#[test]
fn what_a_node_will_show_is_known_before() {
    let mut cluster = Cluster::default();
    put(&mut cluster, "ours", &node([0, 0]));
    put(&mut cluster, "both", &large());
    put(&mut cluster, "kubelets", &facts());
    let mut shared = vm(2);
    shared.pod = crate::testing::pod(1500, 1);
    let told = ["ours", "both", "kubelets", "none"].map(|name| cluster.own_cpus(name, &vm(2)));
    let admission = Some(OwnCpus::AtAdmission);
    assert_eq!(told, [Some(OwnCpus::AtRegistration), admission, admission, None]);
    assert_eq!(cluster.own_cpus("kubelets", &shared), Some(OwnCpus::Never));
}

/// Pod-level resources: kubelet gives such a pod CPUs with its feature gate only, and in scope pod also one whose containers request none of their own.
#[test]
fn whether_a_pod_with_its_own_resources_is_shown_is_kubelets_to_say() {
    let mut cluster = Cluster::default();
    let mut node = facts();
    put(&mut cluster, "off", &node);
    node.kubelet.managers.pod_level = true;
    for scope in ["pod", "container"] {
        let alignment = node.kubelet.alignment.as_mut().unwrap();
        (alignment.policy, alignment.scope) = ("single-numa-node".to_owned(), scope.to_owned());
        put(&mut cluster, scope, &node);
    }
    let of = |own: u64, container: u64| {
        let mut pod = crate::testing::pod(container, 1);
        pod.resources = Some(crate::testing::pod(own, 1).containers[0].resources.clone());
        Request::new(pod, None, Default::default())
    };
    let told = |own, container| ["off", "pod", "container"].map(|name| cluster.own_cpus(name, &of(own, container)));
    let (never, gives) = (Some(OwnCpus::Never), Some(OwnCpus::AtAdmission));
    assert_eq!(told(2000, 2000), [never, gives, gives]);
    assert_eq!(told(2000, 1500), [never, gives, never]);
    assert_eq!(told(2500, 2000), [never, never, gives]);
}

/// What happens to a cluster of three nodes.
#[derive(Debug, Clone)]
enum Event {
    Put(usize, [u32; 2]),
    Spoil(usize),
    Reserve(usize, u128, u64),
    Release(usize, u128),
    Remove(usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0usize..3, 0u32..=60, 50u32..=64).prop_map(|(at, one, other)| Event::Put(at, [one, other])),
        1 => (0usize..3).prop_map(Event::Spoil),
        4 => (0usize..3, 100u128..104, 1u64..40).prop_map(|(at, uid, cpus)| Event::Reserve(at, uid, cpus)),
        2 => (0usize..3, 100u128..104).prop_map(|(at, uid)| Event::Release(at, uid)),
        1 => (0usize..3).prop_map(Event::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// An answer that is kept is the one that would be given now; no CPU is told twice; a cluster that learns the same in one go is in the
    /// same states.
    #[test]
    fn what_is_kept_is_what_would_be_answered(events in vec(any_event(), 1..14)) {
        let names = ["a", "b", "c"];
        let mut cluster = Cluster::default();
        let asked = [1, 7, 16].map(|cpus| cluster.request(vm(cpus)));
        let mut latest: [Option<[u32; 2]>; 3] = [None; 3];
        for event in events {
            match event {
                Event::Put(at, used) => {
                    put(&mut cluster, names[at], &node(used));
                    latest[at] = Some(used);
                }
                Event::Spoil(at) => {
                    prop_assert!(cluster.put(names[at], b"[]").is_err());
                    latest[at] = None;
                }
                Event::Reserve(at, pod, cpus) => {
                    let request = cluster.request(vm(cpus));
                    let _ = cluster.reserve(names[at], Uid(pod), &request);
                }
                Event::Release(at, pod) => {
                    cluster.release(names[at], Uid(pod));
                }
                Event::Remove(at) => {
                    cluster.remove(names[at]);
                    latest[at] = None;
                }
            }
            for request in &asked {
                for name in names {
                    let now = match cluster.explain(name, request) {
                        Ok(placement) => NodeVerdict::Fits(placement.score.total),
                        Err(refusal) => NodeVerdict::Refused(refusal.name),
                    };
                    prop_assert_eq!(verdict(&mut cluster, request, name), now);
                }
            }
            for (name, used) in names.into_iter().zip(latest) {
                let Some(used) = used else { continue };
                let mut fresh = Cluster::default();
                put(&mut fresh, name, &node(used));
                fresh.set_held(name, cluster.on_their_way(name).to_vec());
                let (one, other) = (cluster.forecast(name).unwrap(), fresh.forecast(name).unwrap());
                prop_assert_eq!(one.1, other.1);
            }
        }
    }
}

#[test]
fn a_small_host_is_a_host() {
    let mut facts = facts();
    facts.topology = Shape {
        nodes: 1,
        cores: 1,
        threads: 1,
        interleaved: false,
    }
    .topology();
    facts.numa.remove(&1);
    facts.numa.get_mut(&0).unwrap().distances.remove(&1);
    facts.reserved = CpuSet::new();
    facts.kubelet.reserved = CpuSet::new();
    facts.exclusive = CpuSet::new();
    facts.allocations.clear();
    facts.kubelet.cpu_options.clear();
    let mut cluster = Cluster::default();
    put(&mut cluster, "n", &facts);
    let request = cluster.request(vm(1));
    // Its only CPU would leave nothing to float on.
    assert_eq!(cluster.explain("n", &request).unwrap_err().name, "KubeletStateUnusable");
}
