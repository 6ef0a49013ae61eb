//! `list`: one line per instance.

use serde::Serialize;

use crate::pod::{Found, Pod};
use crate::view::{Column, Look, Meaning, Render, column, table, text_of, texts_of};

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
    /// Why isolation is degraded; empty where it is not.
    degraded: Vec<String>,
}

pub(crate) const COLUMNS: [Column<Instance>; 8] = [
    column("POD", |instance: &Instance| instance.pod.to_string()).yields(2),
    column("POD UID", |instance: &Instance| instance.pod.pod_uid.clone()).wide(),
    column("CONTAINER", |instance: &Instance| instance.container.clone()).yields(3),
    column("STATE", |instance: &Instance| instance.state.clone()).means(|instance| Meaning::of_state(&instance.state)),
    column("CPUS", |instance: &Instance| instance.exclusive_cpus.clone()).yields(1),
    column("FLOAT", |instance: &Instance| instance.float_cpus.clone()).yields(4),
    column("OBJECT", |instance: &Instance| instance.object.clone())
        .wide()
        .yields(5),
    column("DEGRADED", |instance: &Instance| instance.degraded.join("; "))
        .yields(5)
        .means(|_| Meaning::Broken),
];

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Instances(Vec<Instance>);

impl Instances {
    /// One that disappeared meanwhile is left out.
    pub(crate) fn of(found: Vec<Found>) -> Self {
        let instance = |found: Found| {
            let properties = found.properties?;
            let (_, container, object, state, exclusive_cpus) = found.row;
            Some(Instance {
                pod: found.pod,
                container,
                object: object.to_string(),
                state,
                exclusive_cpus,
                float_cpus: text_of(&properties, "FloatCPUs").to_owned(),
                degraded: texts_of(&properties, "Degraded").map(str::to_owned).collect(),
            })
        };
        Self(found.into_iter().filter_map(instance).collect())
    }
}

impl Render for Instances {
    fn pods(&self) -> Vec<Pod> {
        self.0.iter().map(|instance| instance.pod.clone()).collect()
    }

    fn text(&self, look: Look) -> String {
        match self.0.is_empty() {
            true => "No instances.\n".to_owned(),
            false => table(&COLUMNS, &self.0, look),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            degraded: degraded.iter().map(|reason| (*reason).to_owned()).collect(),
        }
    }

    #[test]
    fn the_list_fits_a_narrow_and_a_wide_terminal() {
        let why = ["QEMU has not attached its vCPUs", "CPU 20 is offline"];
        let list = Instances(vec![
            instance("virt-launcher-database-0-x7k2p", "isolated", "2-17,66-81", &[]),
            instance("web", "floating", "20-21", &why),
        ]);
        let at = |width: usize| {
            list.text(Look {
                width: Some(width),
                ..Look::from(true)
            })
        };
        insta::assert_snapshot!(at(80), @r"
        POD                           CONTAIN…  STATE     CPUS        FLOAT     DEGRADED
        kubevirt/virt-launcher-data…  compute   isolated  2-17,66-81  0-1,18-…  -
        kubevirt/web                  compute   floating  20-21       0-1,18-…  QEMU ha…
        ");
        insta::assert_snapshot!(at(200), @r"
        POD                                      CONTAINER  STATE     CPUS        FLOAT             DEGRADED
        kubevirt/virt-launcher-database-0-x7k2p  compute    isolated  2-17,66-81  0-1,18-63,82-127  -
        kubevirt/web                             compute    floating  20-21       0-1,18-63,82-127  QEMU has not attached its vCPUs; CPU 20 is offline
        ");
        assert_eq!(at(200), list.text(Look::from(true)));
    }

    #[test]
    fn an_empty_list_says_so() {
        assert_eq!(Instances(Vec::new()).text(Look::from(true)), "No instances.\n");
        assert_eq!(crate::view::Form::Json.write(&Instances(Vec::new())).unwrap(), "[]\n");
    }
}
