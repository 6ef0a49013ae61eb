//! One `PropertiesChanged` for all properties of an object that changed.

use std::collections::HashMap;

use stelia_api::instance_path;
use stelia_model as model;
use zbus::names::InterfaceName;
use zbus::object_server::{Interface as _, SignalEmitter};
use zbus::{Message, Variant};

use super::instance::{Instance, PROPERTIES};

const INTERFACE: &str = "org.freedesktop.DBus.Properties";
const SIGNAL: &str = "PropertiesChanged";

/// The name of a property that may change, and its value in a view of the object.
pub(super) type Property<T> = (&'static str, for<'a> fn(&'a T) -> Variant<'a>);

/// The interface, the properties that changed with their values, and those whose values are left out: none.
type Body<'a> = (String, HashMap<&'static str, Variant<'a>>, &'static [&'static str]);

/// The body of the signal. `None` if no property differs between the two views.
fn body<'a, T>(interface: &InterfaceName<'_>, all: &[Property<T>], old: &T, new: &'a T) -> Option<Body<'a>> {
    let properties = all.iter().map(|(name, value)| (*name, value(old), value(new)));
    let changed = properties.filter(|(_, old, new)| old != new);
    let changed: HashMap<&str, Variant<'a>> = changed.map(|(name, _, new)| (name, new)).collect();
    (!changed.is_empty()).then(|| (interface.to_string(), changed, [].as_slice()))
}

/// Emits the signal if any of `all` properties differs between the two views.
pub(super) async fn emit<T>(
    emitter: &SignalEmitter<'_>,
    interface: InterfaceName<'_>,
    all: &[Property<T>],
    old: &T,
    new: &T,
) -> zbus::Result<()> {
    match body(&interface, all, old, new) {
        Some(body) => emitter.emit(INTERFACE, SIGNAL, &body).await,
        None => Ok(()),
    }
}

/// The signal of an instance as a message, for a connection that zbus does not have.
pub(super) fn message(old: &model::Instance, new: &model::Instance) -> zbus::Result<Option<Message>> {
    let path = instance_path(&new.pod);
    body(&Instance::name(), &PROPERTIES, old, new)
        .map(|body| Message::signal(path.as_str(), INTERFACE, SIGNAL).build(&body))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use stelia_api::{Reason, ReasonCode, State};
    use stelia_cpus::CpuSet;
    use stelia_kubelet::PodUid;
    use stelia_settings::AdoptPlacement;
    use zbus::fdo::PropertiesChanged;
    use zbus_xml::Node;

    use super::*;

    #[test]
    fn every_property_that_may_change_is_told_with_its_type_and_no_other() {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let old = crate::engine::registered(pod.clone());
        let new = model::Instance {
            container: "other".to_owned(),
            adopted_by: Some("rule".to_owned()),
            state: State::Releasing,
            degraded: vec![Reason::of(&pod, ReasonCode::CpusOffline, "CPU 2 is offline")],
            not_isolated: Some(Reason::of(&pod, ReasonCode::NoVcpus, "waiting for vCPUs")),
            exclusive: CpuSet::below(2),
            float: CpuSet::below(3),
            mems: [1].into(),
            partition: "isolated".to_owned(),
            placement: AdoptPlacement::Keep,
            registered_us: old.registered_us + 1,
            isolated_us: old.isolated_us + 1,
            vcpus: vec![model::PinnedThread {
                thread: stelia_model::record::VcpuThread {
                    role: stelia_api::ThreadRole::Vcpu(0),
                    task: stelia_kernel::proc::TaskId { id: 70, start: 9 },
                    cpu: Some(2),
                },
                guest_node: None,
            }],
            memory_limit: Some(1 << 30),
            pending_resize: Some(model::PendingResize {
                from: 4,
                to: 2,
                deadline_us: 10_000_000,
            }),
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
