//! Intrusions, and the names of what ran.

use stelia_testnode::Runtime;

use super::*;

#[tokio::test]
async fn an_intruder_is_told_and_looked_for_and_its_pod_is_not_told_who() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let mut running = node.keep_ledger(&fake);
    let (pod, qemu) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    fake.host.others.fetch_add(5, Ordering::SeqCst);
    node.reconcile().await;
    let signal = tokio::time::timeout(Duration::from_secs(60), running.signals.recv())
        .await
        .unwrap();
    let Some(Signal::Intruded(intruded, events)) = signal else {
        panic!("{signal:?}")
    };
    assert_eq!((intruded, events.len()), (pod.uid.clone(), 2));
    node.until("it is looked who", |_| !fake.host.targets.lock().unwrap().is_empty())
        .await;
    let target = fake.host.targets.lock().unwrap()[0].clone();
    assert_eq!(
        (target.cpus, target.own),
        (cpus("2-3"), qemu.vcpus.iter().copied().collect())
    );
    let own = node.handle.on_behalf_of(&pod.uid);
    let told = own.account(Some(pod.uid.clone()), 0, None).await.unwrap();
    let account: Account = serde_json::from_str(&told).unwrap();
    assert_eq!(account.totals.other_tasks.least, 10);
    let busy = own.account(Some(pod.uid.clone()), 0, None).await.unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy);
    running.end().await;
}

#[tokio::test]
async fn a_container_has_an_account_of_all_its_cpus_and_all_its_tasks_are_its_own() {
    for runtime in [Runtime::Runc, Runtime::Crun] {
        let mut node = Node::new().allowing_containers().await;
        let fake = Fake::new(node.directory.path());
        let mut running = node.keep_ledger(&fake);
        let pod = node.pod_by(runtime, 1, "2-3");
        node.register_container(&pod).await.unwrap();
        node.until("its seat is opened", |_| !opened(&fake.events()).is_empty())
            .await;
        let whole = stelia_kernel::containers::container_scope(&pod.origin).to_string();
        let seats: Vec<(String, Option<String>)> = fake
            .events()
            .into_iter()
            .filter_map(|event| match event {
                Event::Opened { cpus, cgroup, .. } => Some((cpus.to_string(), cgroup)),
                _ => None,
            })
            .collect();
        assert_eq!(seats, [("2-3".to_owned(), Some(whole.clone()))]);
        let account = node.account(&pod).await;
        assert!(account.is_container && account.covered_us > 0, "{account:?}");
        assert_eq!(account.totals.other_tasks, Range::default());
        fake.host.others.fetch_add(5, Ordering::SeqCst);
        node.reconcile().await;
        let signal = tokio::time::timeout(Duration::from_secs(60), running.signals.recv()).await;
        let Some(Signal::Intruded(_, events)) = signal.unwrap() else {
            panic!("nobody is told")
        };
        assert_eq!(events.len(), 1);
        node.until("it is looked who", |_| !fake.host.targets.lock().unwrap().is_empty())
            .await;
        let target = fake.host.targets.lock().unwrap()[0].clone();
        assert_eq!(
            (target.cpus, target.own, target.by_thread),
            (cpus("2-3"), [77].into(), true)
        );
        assert_eq!(*fake.host.listed.lock().unwrap(), [whole].into());
        running.end().await;
    }
}

#[tokio::test]
async fn where_nobody_may_trace_counts_go_on_and_the_entry_says_that_it_names_nobody() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.locked.store(true, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    fake.host.others.fetch_add(5, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is kept that nobody is named", |_| {
        !attributed(&fake.events()).is_empty()
    })
    .await;
    let (vm, attribution) = attributed(&fake.events()).remove(0);
    assert_eq!(
        (vm, attribution.cpus.as_str(), attribution.problems),
        (pod.uid.to_string(), "2-3", vec!["tracefs is locked".to_owned()])
    );
    assert!(attribution.tasks.is_empty() && attribution.until_us > 0);
    fake.host.others.fetch_add(1, Ordering::SeqCst);
    let account = node.account(&pod).await;
    assert_eq!(account.totals.other_tasks, Range { least: 12, most: 12 });
    assert_eq!(account.attributions.len(), 1);
    running.end().await;
}

#[tokio::test]
async fn a_sample_is_counted_beside_an_audit_and_kept_although_nobody_intruded() {
    let (mut node, fake, running, pod) = read_vm().await;
    node.reconcile().await;
    node.until("the audit's look is taken", |_| fake.readings() > 1).await;
    assert!(fake.host.targets.lock().unwrap().is_empty(), "off by default");
    let every = Every::Hour;
    node.settings.ledger.sample = Some(Sample { seconds: 1, every });
    node.handle.reload(node.settings.clone()).await.unwrap();
    let sampled = node.attributed(&fake).await;
    assert_eq!((sampled.len(), sampled[0].0.as_str()), (1, pod.uid.as_str()));
    assert_eq!(sampled[0].1.tasks[0].name, "payroll");
    assert_eq!(fake.host.targets.lock().unwrap().len(), 1, "once an hour");
    running.end().await;
}
