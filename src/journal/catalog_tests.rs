//! Every message that a test of the engine or of an entry point causes is held to `packaging/journal/steliad.catalog`: what the entry's
//! text names as `@FIELD@` must be a field of the message, or `journalctl -x` prints nothing there. A message with a pod's UID
//! has the fields of its name too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::prelude::*;

static LOGGED: Mutex<Vec<Message>> = Mutex::new(Vec::new());

/// What a test asks of a message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    pub id: String,
    pub namespace: String,
    pub name: String,
    pub text: String,
}

/// The fields that each entry's text names, by the message's id.
fn named(catalog: &'static str) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let entries = catalog.split("\n-- ").skip(1);
    let entries = entries.filter_map(|entry| entry.split_once('\n'));
    let fields = |text: &'static str| text.split('@').filter(|word| word.starts_with("STELIA_")).collect();
    entries.map(|(id, text)| (id, fields(text))).collect()
}

/// The messages that were logged since [`hold_to_it`] was first called.
pub(crate) fn logged() -> Vec<Message> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// From now on a message without a field that it must have panics where it is logged.
pub(crate) fn hold_to_it() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let entries = named(include_str!("../../packaging/journal/steliad.catalog"));
        tracing_subscriber::registry().with(Catalog(entries)).init();
    });
}

struct Catalog(BTreeMap<&'static str, BTreeSet<&'static str>>);

impl<S: Subscriber> Layer<S> for Catalog {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.fields().field("MESSAGE_ID").is_some()
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        let id = &message.id;
        let fields: BTreeSet<&str> = event.fields().map(|field| field.name()).collect();
        let missing: Vec<_> = self.0[id.as_str()].difference(&fields).collect();
        assert!(missing.is_empty(), "{id}: {missing:?} are named and not logged");
        let of_a_pod = [
            "STELIA_POD",
            "STELIA_POD_UID",
            "STELIA_POD_NAMESPACE",
            "STELIA_POD_NAME",
        ]
        .map(|field| fields.contains(field));
        assert!(of_a_pod.iter().all(|has| *has == of_a_pod[0]), "{id}: {fields:?}");
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }
}

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "MESSAGE_ID" => self.id = value.to_owned(),
            "STELIA_POD_NAMESPACE" => self.namespace = value.to_owned(),
            "STELIA_POD_NAME" => self.name = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.text = format!("{value:?}");
        }
    }
}

#[test]
#[should_panic(expected = "STELIA_LEFT")]
fn a_message_without_a_field_that_its_entry_names_is_noticed() {
    hold_to_it();
    tracing::warn!(MESSAGE_ID = super::DRIFT, STELIA_DRIFT = "x", "changed");
}

#[test]
#[should_panic(expected = "STELIA_POD_UID")]
fn a_message_with_a_pods_uid_and_without_its_name_is_noticed() {
    hold_to_it();
    tracing::info!(MESSAGE_ID = super::KUBELET_USABLE, STELIA_POD_UID = "x", "usable");
}
