use proptest::prelude::*;

use super::*;

const MAX_CONNECTIONS: usize = 256;

fn limits() -> Arc<PodCallLimits> {
    Arc::new(PodCallLimits::new(MAX_CONNECTIONS))
}

fn connect(limits: &Arc<PodCallLimits>, pod: &str) -> Result<ConnectionPermit, GateError> {
    PodCallLimits::connect(limits, pod, &BTreeSet::new(), Instant::now())
}

fn pods(limits: &Arc<PodCallLimits>, count: usize) -> Vec<ConnectionPermit> {
    (0..count).map(|n| connect(limits, &n.to_string()).unwrap()).collect()
}

#[test]
fn a_fifth_connection_of_a_pod_waits_for_one_to_end_and_another_pod_does_not() {
    let limits = limits();
    let mut permits: Vec<ConnectionPermit> = (0..4).map(|_| connect(&limits, "a").unwrap()).collect();
    assert_eq!(connect(&limits, "a").unwrap_err(), GateError::TooManyConnections);
    assert!(connect(&limits, "b").is_ok());
    permits.pop();
    assert!(connect(&limits, "a").is_ok());
}

#[test]
fn calls_beyond_the_burst_are_paid_for_with_time_by_all_connections_of_the_pod() {
    let limits = limits();
    let (one, two) = (connect(&limits, "a").unwrap(), connect(&limits, "a").unwrap());
    let now = Instant::now();
    one.spend(60, now);
    assert!(two.wait(now) > Duration::from_millis(900), "{:?}", two.wait(now));
    assert_eq!(two.wait(now + Duration::from_secs(2)), Duration::ZERO);
}

#[test]
fn connecting_again_and_again_costs_the_pod_and_nobody_else() {
    let limits = limits();
    for _ in 0..100 {
        drop(connect(&limits, "a").unwrap());
    }
    let now = Instant::now();
    let (a, b) = (connect(&limits, "a").unwrap(), connect(&limits, "b").unwrap());
    a.spend(1, now);
    assert!(a.own_wait(now) > Duration::ZERO);
    assert!(a.own_wait(now) < Duration::from_millis(200), "{:?}", a.own_wait(now));
    assert_eq!((b.own_wait(now), b.wait(now)), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn pods_at_their_own_limit_do_not_delay_one_that_sends_little() {
    let limits = limits();
    let start = Instant::now();
    let permits = pods(&limits, 60);
    let quiet = connect(&limits, "quiet").unwrap();
    for tenth in 0..300u32 {
        let now = start + Duration::from_millis(100) * tenth;
        for permit in &permits {
            if permit.wait(now).is_zero() {
                permit.spend(2, now);
            }
        }
        if tenth % 10 == 0 {
            assert_eq!(quiet.wait(now), Duration::ZERO, "after {tenth} tenths of a second");
            quiet.spend(1, now);
        }
    }
    // The others are held back: 60 pods of 20 calls a second are three times too many.
    let now = start + Duration::from_secs(30);
    assert!(permits.iter().filter(|permit| !permit.wait(now).is_zero()).count() > 30);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// `calls[n]` is how many calls pod n would like to make in each tenth of a second.
    #[test]
    fn who_keeps_to_a_fair_share_waits_for_nobody_and_all_together_have_a_bound(
        wishes in proptest::collection::vec(0u32..4, 1..120),
    ) {
        let limits = limits();
        let start = Instant::now();
        let permits = pods(&limits, wishes.len());
        let (seconds, share) = (30, ALL_CALLS_A_SECOND / wishes.len() as f64);
        let mut spent = 0;
        for tenth in 0..seconds * 10 {
            let now = start + Duration::from_millis(100) * tenth;
            for (permit, wish) in permits.iter().zip(&wishes) {
                let wanted = f64::from(*wish) * 10.0;
                let fair = wanted <= share.min(CALLS_A_SECOND);
                for _ in 0..*wish {
                    let wait = permit.wait(now);
                    prop_assert!(!fair || wait.is_zero(), "{wanted} of {share} a second: waits {wait:?}");
                    if wait.is_zero() {
                        permit.spend(1, now);
                        spent += 1;
                    }
                }
            }
        }
        // What all may send, once with the burst of all and once with the shares' own; and what may be owed.
        let bound = ALL_CALLS_A_SECOND * f64::from(seconds) + 2.0 * ALL_BURST + 2.0 * wishes.len() as f64;
        prop_assert!(f64::from(spent) <= bound, "{spent} calls in {seconds} s, more than {bound}");
    }
}

#[test]
fn all_pods_together_have_a_bound() {
    let limits = limits();
    let permits = pods(&limits, MAX_CONNECTIONS);
    assert!(connect(&limits, "one more").is_err());
    drop(permits);
    assert!(connect(&limits, "one more").is_ok());
}

#[test]
fn a_place_is_kept_for_every_pod_that_is_known() {
    let limits = Arc::new(PodCallLimits::new(10));
    let known = BTreeSet::from(["a", "b", "c"]);
    let connect = |pod: &str| PodCallLimits::connect(&limits, pod, &known, Instant::now());
    // Strangers and a pod's further connections get what is left.
    let mut permits: Vec<ConnectionPermit> = (0..4).map(|_| connect("a").unwrap()).collect();
    permits.extend((0..4).map(|_| connect("stranger").unwrap()));
    assert!(connect("another stranger").is_err());
    permits.push(connect("b").unwrap());
    assert!(connect("b").is_err());
    permits.push(connect("c").unwrap());
    drop(permits);
    assert!(connect("another stranger").is_ok());
}

#[test]
fn the_number_of_connections_comes_from_the_number_of_descriptors() {
    assert!(connections(65536) > 2000);
    assert!(connections(1024) >= 32);
    assert_eq!((connections(0), connections(u64::MAX) > 1 << 20), (8, true));
}
