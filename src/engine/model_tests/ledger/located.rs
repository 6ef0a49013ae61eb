//! Where the VMs' parts are: when it is read, and what is recorded of it.

use super::*;

const HOUR: u64 = 3600;

fn located(events: &[Event]) -> Vec<(String, Vec<Located>)> {
    let located = events.iter().filter_map(|event| match event {
        Event::Located { vm, parts } => Some((vm.clone(), parts.clone())),
        _ => None,
    });
    located.collect()
}

impl Node {
    /// Audits until as many records are in the ring.
    async fn records(&self, fake: &Fake, count: usize) -> Vec<(String, Vec<Located>)> {
        for _ in 0..2_000 {
            let found = located(&fake.events());
            if found.len() >= count {
                return found;
            }
            self.reconcile().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?}", located(&fake.events()));
    }
}

#[tokio::test]
async fn a_vm_is_located_when_it_is_new_and_then_once_an_hour_and_recorded_when_a_part_moved() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.near.store(97, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    let (pod, _) = node.isolated(1, "2-3").await;
    let first = node.records(&fake, 1).await;
    assert_eq!(
        (first.len(), first[0].0.as_str(), first[0].1[0].near_percent),
        (1, pod.uid.as_str(), 97)
    );
    let began = first[0].1[0].since_us;
    let is_located = |event: &Event| matches!(event, Event::Located { .. });
    let entries = fake.entries().into_iter();
    let with = entries.filter(|entry| entry.events.iter().any(is_located));
    for entry in with {
        // An older version loses it, which must not be more than this.
        assert!(entry.before.is_empty() && entry.readings.is_empty(), "{entry:?}");
        assert!(entry.events.iter().all(is_located), "{entry:?}");
    }

    // Audits within the hour read it no more, whatever moved.
    node.quiet().await;
    let before = fake.host.located.load(Ordering::SeqCst);
    fake.host.near.store(40, Ordering::SeqCst);
    for _ in 0..3 {
        let readings = fake.readings();
        node.reconcile().await;
        node.until("it reads", |_| fake.readings() > readings).await;
    }
    assert_eq!(fake.host.located.load(Ordering::SeqCst), before);

    // Another VM is the only one that is located then.
    node.isolated(2, "4-5").await;
    assert_eq!(node.records(&fake, 2).await.len(), 2);
    node.quiet().await;
    let both = fake.host.located.load(Ordering::SeqCst);
    assert_eq!(both, before + 1, "the first VM did not change");

    // With the hour all are, and the first has moved.
    fake.host.clock.fetch_add(HOUR, Ordering::SeqCst);
    let moved = node.records(&fake, 3).await;
    assert_eq!(
        (moved[2].0.as_str(), moved[2].1[0].near_percent),
        (pod.uid.as_str(), 40)
    );
    assert!(moved[2].1[0].since_us >= began + HOUR * 1_000_000);
    assert_eq!(fake.host.located.load(Ordering::SeqCst), both + 2);

    // A little more or less is no move.
    fake.host.near.store(43, Ordering::SeqCst);
    fake.host.clock.fetch_add(HOUR, Ordering::SeqCst);
    for _ in 0..200 {
        if fake.host.located.load(Ordering::SeqCst) >= both + 4 {
            break;
        }
        node.reconcile().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fake.host.located.load(Ordering::SeqCst), both + 4);
    assert_eq!(located(&fake.events()).len(), 3);

    let account = node.account(&pod).await;
    let times: Vec<(u8, bool)> = account
        .located
        .iter()
        .map(|time| (time.located.near_percent, time.until_us == 0))
        .collect();
    assert_eq!(times, [(97, false), (40, true)]);
    assert_eq!(account.located[0].until_us, account.located[1].located.since_us);
    let shown = |node: &Node| node.handle.view().ledger.located.get(pod.uid.as_str()).cloned();
    node.until("Describe has the record", |node| {
        shown(node).is_some_and(|parts| parts[0].near_percent == 40)
    })
    .await;
    assert_eq!(shown(&node).unwrap()[0].since_us, account.located[1].located.since_us);

    // What ended is where nothing is.
    node.handle.deregister(pod.uid.clone()).await.unwrap();
    node.until("it ended", |_| {
        states(&fake.events()).last().is_some_and(|state| state == "gone")
    })
    .await;
    let account = node.account(&pod).await;
    assert!(
        account.located.iter().all(|time| time.until_us > 0),
        "{:?}",
        account.located
    );
    running.end().await;
}

#[tokio::test]
async fn a_daemon_that_is_started_again_continues_the_record() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.near.store(97, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    let first = node.records(&fake, 1).await;
    running.end().await;
    fake.host.clock.fetch_add(60, Ordering::SeqCst);
    let before = fake.host.located.load(Ordering::SeqCst);

    let running = node.keep_ledger(&fake);
    node.until("it is located again", |_| {
        fake.host.located.load(Ordering::SeqCst) > before
    })
    .await;
    node.until("its record is shown", |node| {
        node.handle
            .view()
            .ledger
            .located
            .values()
            .eq(first.iter().map(|(_, parts)| parts))
    })
    .await;
    node.quiet().await;
    assert_eq!(
        located(&fake.events()),
        first,
        "it has not moved, and since when is kept"
    );
    running.end().await;
}
