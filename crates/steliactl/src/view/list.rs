//! `list`: one line per instance; below, VMs that a rule is of and that are not adopted.

use serde::Serialize;
use stelia_api::State;
use stelia_model::Unadopted;

use crate::shared::daemon::{Description, ListedInstance, Pod, not_isolated};
use crate::shared::output::{self, Column, Meaning, Render, TextStyle, column, table, text_of, texts_of, time};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Instance {
    #[serde(flatten)]
    pod: Pod,
    container: String,
    /// The path of its D-Bus object.
    object: String,
    state: String,
    exclusive_cpus: String,
    /// The CPUs of all other threads of the instance.
    float_cpus: String,
    /// `vcpus`, or `container`: then all tasks of the container run on its exclusive CPUs.
    isolation: String,
    /// The rule that made it an instance; empty where its pod registered itself.
    adopted_by: String,
    /// Why isolation is degraded; empty where it is not.
    degraded: Vec<String>,
    /// Why it floats, and for how long it has; `None` where it does not, or where that is not known.
    #[serde(skip)]
    floats: Option<String>,
}

impl Instance {
    /// Why it floats, then why isolation is degraded.
    fn problems(&self) -> String {
        let problems: Vec<&str> = self.floats.iter().chain(&self.degraded).map(String::as_str).collect();
        problems.join("; ")
    }

    fn meaning(&self) -> Meaning {
        if self.degraded.is_empty() {
            Meaning::Attention
        } else {
            Meaning::Broken
        }
    }
}

pub(crate) const COLUMNS: [Column<Instance>; 10] = [
    column("POD", |instance: &Instance| instance.pod.to_string())
        .yields(2)
        .shortens(),
    column("POD UID", |instance: &Instance| instance.pod.pod_uid.clone()).wide(),
    column("CONTAINER", |instance: &Instance| instance.container.clone()).yields(3),
    column("STATE", |instance: &Instance| instance.state.clone()).means(|instance| Meaning::of_state(&instance.state)),
    column("CPUS", |instance: &Instance| instance.exclusive_cpus.clone()).yields(1),
    column("FLOAT", |instance: &Instance| instance.float_cpus.clone()).yields(4),
    column("OBJECT", |instance: &Instance| instance.object.clone())
        .wide()
        .yields(5),
    column("ISOLATION", |instance: &Instance| instance.isolation.clone()).wide(),
    column("ADOPTED BY", |instance: &Instance| instance.adopted_by.clone()).wide(),
    column("DEGRADED", Instance::problems).wraps().means(Instance::meaning),
];

/// A VM that a rule is of and that is not adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct UnmanagedVm {
    #[serde(flatten)]
    pod: Pod,
    container: String,
    rule: String,
    /// The name of the reason: one of the rules', or of the error that registration answers.
    reason: String,
    why: String,
    since_us: u64,
}

impl UnmanagedVm {
    fn of(one: &Unadopted) -> Self {
        Self {
            pod: Pod::new(&one.pod, one.pod_name.as_ref()),
            container: one.container.clone(),
            rule: one.rule.clone(),
            reason: one.reason.clone(),
            why: one.text.clone(),
            since_us: one.since_us,
        }
    }
}

const UNMANAGED: [Column<UnmanagedVm>; 6] = [
    column("NOT ADOPTED", |one: &UnmanagedVm| one.pod.to_string())
        .yields(2)
        .shortens(),
    column("CONTAINER", |one: &UnmanagedVm| one.container.clone()).yields(3),
    column("RULE", |one: &UnmanagedVm| one.rule.clone()).yields(3),
    column("REASON", |one: &UnmanagedVm| one.reason.clone()).means(|_| Meaning::Attention),
    column("SINCE", |one: &UnmanagedVm| time(one.since_us)).wide(),
    column("WHY", |one: &UnmanagedVm| one.why.clone()).wraps(),
];

/// The answer of `list --unmanaged`.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Unmanaged(Vec<UnmanagedVm>);

impl Unmanaged {
    pub(crate) fn of(described: &Description) -> Self {
        Self(described.node.unadopted.iter().map(UnmanagedVm::of).collect())
    }
}

impl Render for Unmanaged {
    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.pod.to_string()).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        if self.0.is_empty() {
            "No VMs to adopt.\n".to_owned()
        } else {
            table(&UNMANAGED, &self.0, style)
        }
    }
}

/// As JSON the instances alone.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Instances {
    instances: Vec<Instance>,
    #[serde(skip)]
    unmanaged: Vec<UnmanagedVm>,
}

impl Instances {
    /// With what the daemon describes, as far as the caller may know it. An instance that disappeared meanwhile is left out.
    pub(crate) fn of(found: Vec<ListedInstance>, described: &Description) -> Self {
        let now = output::now();
        let floats = |instance: &stelia_model::Instance| {
            let why = not_isolated(instance).filter(|_| instance.state == State::Waiting)?;
            Some(why.at(now))
        };
        let instance = |found: ListedInstance| {
            let properties = found.properties?;
            let (_, container, object, state, exclusive_cpus) = found.row;
            let mut described = described.node.instances.iter();
            let described = described.find(|(uid, _)| uid.as_str() == found.pod.pod_uid);
            let described = described.map(|(_, instance)| &**instance);
            Some(Instance {
                floats: described.and_then(floats),
                pod: found.pod,
                container,
                object: object.to_string(),
                state,
                exclusive_cpus,
                float_cpus: text_of(&properties, "FloatCPUs").to_owned(),
                isolation: text_of(&properties, "Isolation").to_owned(),
                adopted_by: text_of(&properties, "AdoptedBy").to_owned(),
                degraded: texts_of(&properties, "Degraded").map(str::to_owned).collect(),
            })
        };
        let mut instances: Vec<Instance> = found.into_iter().filter_map(instance).collect();
        instances.sort_by_cached_key(|instance| (instance.pod.to_string(), instance.pod.pod_uid.clone()));
        Self {
            instances,
            unmanaged: Unmanaged::of(described).0,
        }
    }

    /// Without the VMs that are not adopted.
    pub(crate) fn without_unmanaged(&mut self) {
        self.unmanaged.clear();
    }
}

impl Render for Instances {
    fn names(&self) -> Vec<String> {
        self.instances.iter().map(|instance| instance.pod.to_string()).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let instances = if self.instances.is_empty() {
            "No instances.\n".to_owned()
        } else {
            table(&COLUMNS, &self.instances, style)
        };
        if self.unmanaged.is_empty() {
            instances
        } else {
            format!("{instances}\n{}", table(&UNMANAGED, &self.unmanaged, style))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stelia_kubelet::{PodName, PodUid};

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::{columns, says};

    fn instance(name: &str, state: &str, cpus: &str, degraded: &[&str]) -> Instance {
        Instance {
            pod: Pod {
                pod_uid: "3ceda12c-3ee9-40fa-9f42-61428fe654a6".to_owned(),
                pod_namespace: "kubevirt".to_owned(),
                pod_name: name.to_owned(),
            },
            container: "compute".to_owned(),
            object: "/io/stelia/Isolation1/instance/_3ceda12c".to_owned(),
            state: state.to_owned(),
            exclusive_cpus: cpus.to_owned(),
            float_cpus: "0-1,18-63,82-127".to_owned(),
            isolation: "vcpus".to_owned(),
            adopted_by: String::new(),
            degraded: degraded.iter().map(|reason| (*reason).to_owned()).collect(),
            floats: None,
        }
    }

    #[test]
    fn the_list_fits_a_narrow_and_a_wide_terminal() {
        let why = ["QEMU has not attached its vCPUs", "CPU 20 is offline"];
        let list = Instances {
            instances: vec![
                instance("virt-launcher-database-0-x7k2p", "isolated", "2-17,66-81", &[]),
                instance("web", "floating", "20-21", &why),
            ],
            unmanaged: Vec::new(),
        };
        let at = |width: usize| list.text(columns(width));
        let narrow = at(80);
        says(
            &narrow,
            &[
                "kubevi", "x7k2p", "isolated", "QEMU", "attached", "CPU", "20", "offline",
            ],
        );
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        insta::assert_snapshot!(list.text(TextStyle::from(true)), @r"
        POD                                      CONTAINER  STATE     CPUS        FLOAT             DEGRADED
        kubevirt/virt-launcher-database-0-x7k2p  compute    isolated  2-17,66-81  0-1,18-63,82-127  -
        kubevirt/web                             compute    floating  20-21       0-1,18-63,82-127  QEMU has not attached its vCPUs; CPU 20 is offline
        ");
    }

    #[test]
    fn a_vm_that_floats_says_why_and_json_has_its_reasons_of_degradation_alone() {
        let mut described = node();
        instance_mut(&mut described, PODS[1]).degraded.clear();
        let found = PODS[..2]
            .iter()
            .zip(["isolated", "floating"])
            .map(|(uid, state)| ListedInstance {
                pod: Pod::unnamed(uid),
                row: (
                    (*uid).to_owned(),
                    "vm".to_owned(),
                    zbus::OwnedObjectPath::try_from("/io/stelia/Isolation1/instance/x").unwrap(),
                    state.to_owned(),
                    "2".to_owned(),
                ),
                properties: Some(serde_json::Map::new()),
            });
        let list = Instances::of(found.collect(), &described);
        let text = list.text(TextStyle::from(false));
        let ends: Vec<bool> = text.lines().map(|line| line.ends_with("vCPUs not attached")).collect();
        assert_eq!(ends, [false, true], "{text}");
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json[1]["degraded"], serde_json::json!([]));
        assert_eq!(json[1].get("floats"), None);
    }

    #[test]
    fn an_empty_list_says_so() {
        let none = |unmanaged| Instances {
            instances: Vec::new(),
            unmanaged,
        };
        assert_eq!(none(Vec::new()).text(TextStyle::from(true)), "No instances.\n");
        assert_eq!(output::Form::Json.write(&none(Vec::new())).unwrap(), "[]\n");
        let mut described = Description::default();
        described.node.unadopted = Arc::new(vec![Unadopted {
            pod: PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            pod_name: PodName::new("kubevirt", "virt-launcher-web-x7k2p"),
            container: "compute".to_owned(),
            rule: "kubevirt".to_owned(),
            reason: "NotGuaranteed".to_owned(),
            text: "kubelet gave the container no exclusive CPUs".to_owned(),
            since_us: 1,
        }]);
        let unmanaged = Unmanaged::of(&described);
        assert_eq!(unmanaged.names(), ["kubevirt/virt-launcher-web-x7k2p"]);
        assert_eq!(serde_json::to_value(&unmanaged).unwrap()[0]["reason"], "NotGuaranteed");
        assert_eq!(Unmanaged(Vec::new()).text(TextStyle::from(true)), "No VMs to adopt.\n");
        let refused = none(unmanaged.0);
        insta::assert_snapshot!(refused.text(TextStyle::from(true)), @r"
        No instances.

        NOT ADOPTED                       CONTAINER  RULE      REASON         WHY
        kubevirt/virt-launcher-web-x7k2p  compute    kubevirt  NotGuaranteed  kubelet gave the container no exclusive CPUs
        ");
    }
}
