//! One `PropertiesChanged` for all properties of an instance that changed.

use std::collections::HashMap;

use stelia_api::{Reason, instance_path};
use zbus::object_server::{Interface as _, SignalEmitter};
use zbus::{Message, Variant};

use super::instance::Instance;
use crate::engine::InstanceView;

const INTERFACE: &str = "org.freedesktop.DBus.Properties";
const SIGNAL: &str = "PropertiesChanged";

/// The interface, the properties that changed with their values, and those whose values are left out: none.
type Body<'a> = (String, HashMap<&'static str, Variant<'a>>, &'static [&'static str]);

/// A property's name, whether it changed, and its value now.
type Property<'a> = (&'static str, bool, fn(&'a InstanceView) -> Variant<'a>);

/// The body of the signal, where any property differs between two views of an instance.
fn body<'a>(old: &InstanceView, new: &'a InstanceView) -> Option<Body<'a>> {
    let properties: [Property<'a>; 9] = [
        ("State", old.state != new.state, |view| view.state.into()),
        ("Degraded", old.degraded != new.degraded, |view| {
            let reasons = view.degraded.iter().map(Reason::to_string);
            reasons.collect::<Vec<String>>().into()
        }),
        ("ExclusiveCPUs", old.exclusive != new.exclusive, |view| {
            view.exclusive.to_string().into()
        }),
        ("FloatCPUs", old.float != new.float, |view| {
            view.float.to_string().into()
        }),
        ("MemoryNodes", old.mems != new.mems, |view| view.mems.as_str().into()),
        ("Partition", old.partition != new.partition, |view| {
            view.partition.as_str().into()
        }),
        ("Placement", old.placement != new.placement, |view| {
            view.placement.into()
        }),
        ("AdoptedBy", old.adopted_by != new.adopted_by, |view| {
            view.adopted_by.as_deref().unwrap_or_default().into()
        }),
        ("IsolatedTimestamp", old.isolated_us != new.isolated_us, |view| {
            view.isolated_us.into()
        }),
    ];
    let changed = properties.into_iter().filter(|(_, differs, _)| *differs);
    let changed: HashMap<&str, Variant<'a>> = changed.map(|(name, _, value)| (name, value(new))).collect();
    (!changed.is_empty()).then(|| (Instance::name().to_string(), changed, [].as_slice()))
}

/// Emit the signal, if anything differs between two views.
pub(super) async fn tell(emitter: &SignalEmitter<'_>, old: &InstanceView, new: &InstanceView) -> zbus::Result<()> {
    match body(old, new) {
        Some(body) => emitter.emit(INTERFACE, SIGNAL, &body).await,
        None => Ok(()),
    }
}

/// The signal alone, for a connection that zbus does not have.
pub(super) fn message(old: &InstanceView, new: &InstanceView) -> zbus::Result<Option<Message>> {
    let path = instance_path(&new.pod);
    body(old, new)
        .map(|body| Message::signal(path.as_str(), INTERFACE, SIGNAL).build(&body))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use stelia_api::ReasonKind;
    use stelia_cpus::CpuSet;
    use stelia_kubelet::PodUid;
    use zbus::fdo::PropertiesChanged;
    use zbus_xml::Node;

    use super::*;

    #[test]
    fn every_property_that_may_change_is_told_with_its_type_and_no_other() {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let old = InstanceView::registered(pod.clone());
        let new = InstanceView {
            container: "other".to_owned(),
            adopted_by: Some("rule".to_owned()),
            state: "leaving",
            degraded: vec![Reason::of(&pod, ReasonKind::CpusOffline, "CPU 2 is offline")],
            exclusive: CpuSet::below(2),
            float: CpuSet::below(3),
            mems: "1".to_owned(),
            partition: "isolated".to_owned(),
            placement: "other",
            registered_us: old.registered_us + 1,
            isolated_us: old.isolated_us + 1,
            ..old.clone()
        };
        let message = message(&old, &new).unwrap().unwrap();
        assert_eq!(message.header().path().unwrap().as_str(), instance_path(&new.pod));
        let signal = PropertiesChanged::from_message(message).unwrap();
        let arguments = signal.args().unwrap();
        assert_eq!(arguments.interface_name(), &Instance::name());
        let changed = arguments.changed_properties().iter();
        let told: BTreeSet<String> = changed
            .map(|(name, value)| format!("{name} {}", value.value_signature()))
            .collect();
        let contract = include_str!("../../dbus-interfaces/io.stelia.Isolation1.Instance.xml");
        let contract = Node::try_from(contract).unwrap();
        let may_change = contract.interfaces()[0]
            .properties()
            .filter(|property| property.annotations().is_empty())
            .map(|property| format!("{} {}", property.name(), property.ty()));
        assert_eq!(told, may_change.collect());
        assert!(super::message(&new, &Arc::new(new.clone())).unwrap().is_none());
    }
}
