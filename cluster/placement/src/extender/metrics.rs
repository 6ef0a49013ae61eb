//! OpenMetrics.

use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::placer::Placer;

type Labels = [(&'static str, &'static str); 1];

/// All metrics as text.
pub(super) fn text(placer: &Placer) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("stelia_placement");
    let (counts, reservations) = (placer.counts(), placer.reservation_counts());
    let ready = i64::from(placer.ready().is_ok());
    registry.register("ready", "Whether this instance places pods", ConstGauge::new(ready));
    let leader = i64::from(placer.leadership().is_held());
    registry.register("leader", "Whether it holds the Lease", ConstGauge::new(leader));
    registry.register("nodes", "Nodes with an object", ConstGauge::new(whole(placer.nodes())));
    registry.register(
        "silent_nodes",
        "Nodes whose objects do not show what was bound",
        ConstGauge::new(whole(reservations.silent_nodes)),
    );
    let claims: Family<Labels, Gauge> = Family::default();
    for (state, number) in [
        ("binding", reservations.binding),
        ("unseen", reservations.unseen),
        ("foreign", reservations.foreign),
        ("leaving", reservations.leaving),
    ] {
        claims.get_or_create(&[("state", state)]).set(whole(number));
    }
    registry.register(
        "claims",
        "Pods that hold CPUs beside what the nodes' objects show; foreign ones are unseen too",
        claims,
    );
    registry.register(
        "waiting",
        "Pods that no node had room for when they were asked about last",
        ConstGauge::new(whole(placer.waiting())),
    );
    let counter = |of: &AtomicU64| ConstCounter::new(of.load(Ordering::Relaxed));
    for (name, help, of) in [
        ("binds", "Pods that were bound", &counts.bound),
        (
            "binds_rejected",
            "Binds that the node would have refused",
            &counts.rejected,
        ),
        (
            "binds_failed",
            "Binds that failed otherwise, or whose outcome was not known when they were answered",
            &counts.failed,
        ),
        (
            "retries",
            "Pods that were told to be tried again because a node has room for them",
            &counts.retried,
        ),
        (
            "refused_foreign",
            "Pods that their node refused because of one that another scheduler or a former leader bound",
            &counts.refused_foreign,
        ),
        (
            "refused",
            "Pods that their node refused, and no other scheduler was there",
            &counts.refused_own,
        ),
        ("updates", "Changes of pods and nodes' objects", &counts.updates),
        ("unreadable", "Objects that could not be read", &counts.unreadable),
    ] {
        registry.register(name, help, counter(of));
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
