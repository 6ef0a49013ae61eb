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

/// The entries of the last segment.
fn last_segment(fake: &Fake) -> Vec<Entry> {
    let mut entries = fake.entries();
    let first = entries.iter().rposition(|entry| !entry.before.is_empty());
    entries.split_off(first.unwrap_or_default())
}

impl Node {
    /// Audits until this is so.
    async fn audits_until(&self, fake: &Fake, what: &str, is_so: impl Fn(&Fake) -> bool) {
        for _ in 0..2_000 {
            if is_so(fake) {
                return;
            }
            self.reconcile().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: {:?}", fake.entries());
    }

    /// Audits until as many records are in the ring.
    async fn records(&self, fake: &Fake, count: usize) -> Vec<(String, Vec<Located>)> {
        let are_found = |fake: &Fake| located(&fake.events()).len() >= count;
        self.audits_until(fake, "records", are_found).await;
        located(&fake.events())
    }

    /// Sets the size of the ring, in bytes.
    async fn ring(&mut self, bytes: u64) {
        self.settings.ledger.bytes = bytes;
        self.handle.reload(self.settings.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn a_repetition_that_the_disk_refused_is_written_in_the_same_segment() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.near.store(97, Ordering::SeqCst);
    let running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    let first = node.records(&fake, 1).await;
    let length = |fake: &Fake| fake.files().bytes();
    while length(&fake) < 6_000 {
        let entries = fake.entries().len();
        fake.host.clock.fetch_add(HOUR, Ordering::SeqCst);
        node.audits_until(&fake, "an hour", |fake| fake.entries().len() > entries)
            .await;
    }
    node.quiet().await;

    // The segment is longer than any may be now: the next one begins.
    fake.host.refuses_located.store(true, Ordering::SeqCst);
    let last = fake.entries().len();
    node.ring(16 * 5_000).await;
    node.audits_until(&fake, "the next segment", |fake| {
        let entries = fake.entries();
        entries[last..].iter().any(|entry| !entry.before.is_empty())
    })
    .await;
    node.until("it is said", |node| node.handle.view().ledger.problem.is_some())
        .await;
    assert_eq!(located(&fake.events()), first);

    fake.host.refuses_located.store(false, Ordering::SeqCst);
    let of_last = |fake: &Fake| {
        let events: Vec<Event> = last_segment(fake).into_iter().flat_map(|entry| entry.events).collect();
        located(&events)
    };
    node.audits_until(&fake, "the repetition", |fake| !of_last(fake).is_empty())
        .await;
    node.quiet().await;
    for _ in 0..3 {
        node.reconcile().await;
    }
    assert_eq!(of_last(&fake), first, "once");
    running.end().await;
}

#[tokio::test]
async fn no_vm_is_located_while_each_entry_fills_its_segment() {
    let mut node = Node::new();
    let fake = Fake::new(node.directory.path());
    fake.host.near.store(97, Ordering::SeqCst);
    node.ring(8_000).await;
    let running = node.keep_ledger(&fake);
    node.isolated(1, "2-3").await;
    let begun = |fake: &Fake| fake.entries().last().map_or(0, |entry| entry.seq);
    node.audits_until(&fake, "the first entries", |fake| begun(fake) >= 3)
        .await;
    assert!(fake.entries().iter().all(|entry| !entry.before.is_empty()));
    node.quiet().await;
    let before = (fake.host.located.load(Ordering::SeqCst), begun(&fake));
    node.audits_until(&fake, "more entries", |fake| begun(fake) >= before.1 + 3)
        .await;
    assert_eq!(fake.host.located.load(Ordering::SeqCst), before.0);
    assert_eq!(located(&fake.events()), []);

    // A larger ring has room.
    node.ring(1 << 20).await;
    assert_eq!(node.records(&fake, 1).await[0].1[0].near_percent, 97);
    running.end().await;
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
