//! When counters are read, and what becomes of them.

use super::*;

#[tokio::test]
async fn of_a_vms_life_its_seats_are_opened_read_and_closed() {
    let (node, fake, running, pod) = read_vm().await;
    let seats = opened(&fake.events());
    assert_eq!(seats.values().collect::<Vec<_>>(), ["2", "3"]);
    let account = node.account(&pod).await;
    assert_eq!(account.vm, uid(1).to_string());
    assert_eq!(account.totals.other_tasks, Range::default(), "nobody else ran");
    assert!(account.covered_us > 0, "{account:?}");
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    let ended = |events: &[Event]| {
        let closed = events.iter().filter(|event| matches!(event, Event::Closed { .. }));
        closed.count() == 2 && states(events).last().is_some_and(|state| state == "gone")
    };
    node.until("they are closed", |_| ended(&fake.events())).await;
    for event in fake.events() {
        if let Event::Closed { why, .. } = event {
            assert!([Closed::Ended, Closed::NotIsolated].contains(&why), "{why:?}");
        }
    }
    let verdict: Verdict = serde_json::from_str(&node.handle.verify_ledger().await.unwrap()).unwrap();
    assert!(verdict.is_good() && verdict.entries > 1, "{verdict:?}");
    assert_eq!(verdict.keys, [node.handle.view().ledger.key.clone()]);
    running.end().await;
    assert!(matches!(fake.events().last(), Some(Event::Stopped {})));
}

#[tokio::test]
async fn neither_engine_nor_callers_wait_for_a_disk_that_hangs() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.hang(true);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.check().await;
    assert_eq!(
        node.account(&pod).await.covered_us,
        0,
        "it is answered without a fresh look"
    );
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    node.check().await;
    running.end().await;
    // For the thread, which nobody waits for.
    fake.host.hang(false);
}

#[tokio::test]
async fn what_changes_while_it_is_at_work_is_one_look() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    // Where there is no VM it does not look.
    node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    node.quiet().await;
    fake.host.hang(true);
    let before = fake.readings();
    for (number, list) in [(2, "4-5"), (3, "6-7")] {
        node.isolated(number, list).await;
    }
    fake.host.hang(false);
    node.until("all seats are opened", |_| opened(&fake.events()).len() == 6)
        .await;
    // One that hung, one for all that came meanwhile, and one if the last change was not seen by then.
    assert!(fake.readings() - before <= 3, "{} readings", fake.readings() - before);
    running.end().await;
}

#[tokio::test]
async fn what_no_view_shows_differently_is_not_looked_at() {
    let (mut node, fake, running, _) = read_vm().await;
    node.quiet().await;
    let before = fake.readings();
    node.reconcile().await;
    node.until("it readings beside the audit", |_| fake.readings() > before)
        .await;
    let before = fake.readings();
    // A container that is no VM has CPUs now: every float has fewer.
    let float = node.handle.view().instances[&uid(1)].float.clone();
    node.checkpoint.admit(&uid(9), "other", &cpus("4-5")).unwrap();
    node.until("its float changed", |node| {
        node.handle.view().instances[&uid(1)].float != float
    })
    .await;
    node.quiet().await;
    assert_eq!(fake.readings(), before);
    running.end().await;
}

#[tokio::test]
async fn a_full_disk_is_said_hurts_no_vm_and_loses_no_count() {
    let (node, fake, running, pod) = read_vm().await;
    fake.host.full.store(true, Ordering::SeqCst);
    fake.host.others.fetch_add(7, Ordering::SeqCst);
    let problem = |node: &Node| node.handle.view().ledger.problem.clone();
    for _ in 0..100 {
        node.reconcile().await;
        if problem(&node).is_some() {
            break;
        }
    }
    assert!(problem(&node).unwrap().contains("No space left"));
    node.check().await;
    fake.host.full.store(false, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is kept again", |node| problem(node).is_none()).await;
    let missed = |event: &Event| matches!(event, Event::Missed { why, .. } if why.contains("No space left"));
    node.until("what was missed is said", |_| fake.events().iter().any(missed))
        .await;
    let others = node.account(&pod).await.totals.other_tasks;
    assert_eq!((others.least, others.most), (14, 14), "seven on each of two CPUs");
    running.end().await;
}

#[tokio::test]
async fn a_daemon_that_was_killed_loses_and_books_nothing_twice() {
    let (mut node, fake, running, pod) = read_vm().await;
    fake.host.others.fetch_add(5, Ordering::SeqCst);
    assert_eq!(
        node.account(&pod).await.totals.other_tasks,
        Range { least: 10, most: 10 }
    );
    // It does not come to write that it ends.
    fake.host.full.store(true, Ordering::SeqCst);
    running.end().await;
    fake.host.full.store(false, Ordering::SeqCst);
    fake.host.others.fetch_add(1, Ordering::SeqCst);
    node.restart().await;
    node.reconcile().await;
    let running = node.keep_ledger(&fake);
    node.until("the next one began", |_| {
        let started = fake
            .events()
            .iter()
            .filter(|event| matches!(event, Event::Started { .. }))
            .count();
        started == 2
    })
    .await;
    let account = node.account(&pod).await;
    assert_eq!(account.totals.other_tasks, Range { least: 12, most: 12 }, "{account:?}");
    assert_eq!(account.gaps, [], "nothing is unknown");
    running.end().await;
}

#[tokio::test]
async fn the_time_before_a_vms_first_reading_is_a_gap() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    // It has just got its CPUs, for as long as the test lasts.
    fake.host.settles.store(true, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    let account = node.account(&pod).await;
    assert!(account.promised_us > 0 && account.covered_us == 0, "{account:?}");
    assert!(account.gaps.iter().all(|gap| gap.why == Closed::NotRead), "{account:?}");
    fake.host.settles.store(false, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is read", |_| {
        fake.entries().iter().any(|entry| !entry.readings.is_empty())
    })
    .await;
    let account = node.account(&pod).await;
    assert!(
        account.covered_us > 0 && account.covered_us < account.promised_us,
        "{account:?}"
    );
    let whys: Vec<Closed> = account.gaps.iter().map(|gap| gap.why).collect();
    assert_eq!(whys, [Closed::NotRead], "{account:?}");
    running.end().await;
}

#[tokio::test]
async fn switched_off_nothing_is_looked_at_and_a_reload_switches_it() {
    let mut node = Node::new();
    node.settings.ledger.kept = false;
    node.restart().await;
    let fake = Fake::new(node.directory.path());
    let running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    node.reconcile().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((fake.readings(), node.handle.view().ledger.enabled), (0, false));
    node.settings.ledger.kept = true;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched on", |_| opened(&fake.events()).len() == 2)
        .await;
    node.settings.ledger.kept = false;
    node.handle.reload(node.settings.clone()).await.unwrap();
    node.until("it is switched off", |node| !node.handle.view().ledger.enabled)
        .await;
    let ended = || matches!(fake.events().last(), Some(Event::Stopped {}));
    node.until("and says so", |_| ended()).await;
    running.end().await;
}
