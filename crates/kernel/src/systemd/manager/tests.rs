use super::fake::Fake;
use super::*;

async fn start(systemd: &DbusSystemd, unit: &str) -> Result<(), SystemdError> {
    let devices = Devices::default();
    let listening = systemd.listen().await?;
    systemd
        .start_scope(listening, unit, "a VM", 1, &Limits::default(), &devices)
        .await
}

/// Whoever is subscribed already is told of the job. A job whose end is not told is done when its unit is active, and has failed where it is
/// not.
#[tokio::test]
async fn a_scope_is_started_whoever_is_told_of_the_job_and_its_failure_is_seen_untold() {
    for (subscribed, silent, fails) in [(true, false, false), (false, true, false), (false, true, true)] {
        let fake = Fake {
            subscribed,
            silent,
            fails,
            ..Fake::default()
        };
        let (_server, systemd) = fake.serve().await;
        let started = start(&systemd, "a.scope").await.map_err(|error| error.to_string());
        let failure = "start a.scope: the job ended, and the unit is not active".to_owned();
        assert_eq!(started, if fails { Err(failure) } else { Ok(()) });
    }
}

#[tokio::test]
async fn a_systemd_that_was_away_is_asked_again_and_what_it_did_is_not_done_twice() {
    let fake = Fake {
        leaves: true,
        ..Fake::default()
    };
    let (server, systemd) = fake.serve().await;
    start(&systemd, "a.scope").await.unwrap();
    systemd.weigh("a.scope", 1).await.unwrap();
    let told = fake::told(&server).await;
    let count = |wanted: &str| told.iter().filter(|call| *call == wanted).count();
    assert_eq!(
        (count("StartTransientUnit"), count("SetUnitProperties")),
        (1, 2),
        "{told:?}"
    );
    assert_eq!(systemd.subscription.jobs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_end_of_one_job_does_not_make_another_deaf() {
    let (server, systemd) = Fake::default().serve().await;
    let slow = start(&systemd, "slow.scope");
    let quick = async {
        start(&systemd, "quick.scope").await.unwrap();
        start(&systemd, "quick.scope").await.unwrap();
    };
    let (slow, ()) = tokio::join!(slow, quick);
    slow.unwrap();
    let told = fake::told(&server).await;
    assert_eq!(told.iter().filter(|call| *call == "Unsubscribe").count(), 1, "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("Unsubscribe"), "{told:?}");
}

#[tokio::test]
async fn a_systemd_that_does_not_answer_is_named_in_every_call() {
    let fake = Fake {
        hangs: true,
        ..Fake::default()
    };
    let (_server, mut systemd) = fake.serve().await;
    systemd.timeout = Duration::from_millis(50);
    let (limits, cpus) = (Limits::default(), CpuSet::new());
    let errors = [
        start(&systemd, "a.scope").await.unwrap_err(),
        systemd.devices("a.scope").await.unwrap_err(),
        systemd.stop_emptied("a.scope").await.unwrap_err(),
        systemd.scopes("*").await.unwrap_err(),
        systemd.limit("a.scope", &limits).await.unwrap_err(),
        systemd.weigh("a.scope", 1).await.unwrap_err(),
        systemd.protect("a.scope", 1, 1).await.unwrap_err(),
        systemd.allow_cpus("a.scope", &cpus).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.cause, "systemd (PID 1) did not answer within 0 s", "{error}");
    }
}

#[test]
fn no_limit_is_systemds_infinity_and_no_weight_is_left_alone() {
    let limits = Limits {
        memory_max: Some(1 << 30),
        memory_low: 1 << 20,
        cpu_max: CpuQuota::parse("25000 50000"),
        ..Limits::default()
    };
    let told: Vec<(&str, u64)> = limit_properties(&limits)
        .into_iter()
        .map(|(name, value)| (name, u64::try_from(value).unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("MemoryMax", 1 << 30),
            ("MemoryHigh", INFINITY),
            ("MemorySwapMax", INFINITY),
            ("TasksMax", INFINITY),
            ("CPUQuotaPerSecUSec", 500_000),
            ("CPUQuotaPeriodUSec", 50_000),
            ("MemoryMin", 0),
            ("MemoryLow", 1 << 20),
        ]
    );
}
