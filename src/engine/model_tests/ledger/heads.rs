//! The signed heads of days.

use super::*;

/// The next head that is signalled: day, number and hash.
async fn head(running: &mut RunningLedger) -> (String, u64, String) {
    loop {
        let signal = tokio::time::timeout(Duration::from_secs(60), running.signals.recv());
        if let Signal::Head(Event::Head { day, seq, hash, .. }) = signal.await.unwrap().unwrap() {
            return (day, seq, hash);
        }
    }
}

#[tokio::test]
async fn a_day_that_ended_is_signed_once_told_and_still_shown_by_the_next_daemon() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    let mut running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
        .await;
    // It ends while the disk is full.
    fake.host.full.store(true, Ordering::SeqCst);
    fake.host.clock.fetch_add(86_400, Ordering::SeqCst);
    node.reconcile().await;
    node.until("it is said", |node| node.handle.view().ledger.problem.is_some())
        .await;
    assert!(running.signals.try_recv().is_err(), "nothing that is not kept is told");
    fake.host.full.store(false, Ordering::SeqCst);
    node.reconcile().await;
    let told = head(&mut running).await;
    let shown = |node: &Node| {
        let ledger = node.handle.view().ledger.clone();
        (ledger.day.clone(), ledger.seq, ledger.hash.clone())
    };
    node.until("it is shown", |node| shown(node) == told).await;
    let verdict: Verdict = serde_json::from_str(&node.handle.verify_ledger().await.unwrap()).unwrap();
    let heads = verdict.heads.iter();
    let heads: Vec<_> = heads
        .map(|head| (head.day.clone(), head.seq, head.hash.clone()))
        .collect();
    assert_eq!((verdict.is_good(), heads), (true, vec![told.clone()]), "{verdict:?}");
    running.end().await;
    node.restart().await;
    node.reconcile().await;
    let running = node.keep_ledger(&fake);
    node.until("the next daemon shows it", |node| shown(node) == told).await;
    running.end().await;
}

#[tokio::test]
async fn a_clock_that_was_years_in_the_future_ends_no_signing_also_across_a_restart() {
    const DAY: u64 = 86_400;
    for restarts in [false, true] {
        let mut node = Node::new();
        let fake = Fake::new(node.directory.path());
        let mut running = node.keep_ledger(&fake);
        node.isolated(1, "2-3").await;
        node.until("its seats are opened", |_| opened(&fake.events()).len() == 2)
            .await;
        // In another year, for two days.
        fake.host.clock.fetch_add(1_000 * DAY, Ordering::SeqCst);
        let mut days = Vec::new();
        for step in [0, DAY] {
            fake.host.clock.fetch_add(step, Ordering::SeqCst);
            node.reconcile().await;
            days.push(head(&mut running).await);
        }
        if restarts {
            running.end().await;
            node.restart().await;
            node.reconcile().await;
            running = node.keep_ledger(&fake);
            node.until("the next daemon shows the last head", |node| {
                node.handle.view().ledger.seq == days[1].1
            })
            .await;
        }
        // It is right again: what was written in that year is signed at once, and the days from then on as always.
        fake.host.clock.fetch_sub(1_001 * DAY, Ordering::SeqCst);
        for step in [0, DAY, DAY] {
            fake.host.clock.fetch_add(step, Ordering::SeqCst);
            node.reconcile().await;
            days.push(head(&mut running).await);
        }
        let numbers: Vec<u64> = days.iter().map(|(_, seq, _)| *seq).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{days:?}");
        assert!(days[1].0 > days[3].0 && days[2].0 > days[4].0, "{days:?}");
        let verdict: Verdict = serde_json::from_str(&node.handle.verify_ledger().await.unwrap()).unwrap();
        assert!(verdict.is_good() && verdict.vouched_seq == numbers[4], "{verdict:?}");
        running.end().await;
    }
}
