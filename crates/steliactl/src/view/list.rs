//! `list`: one line per instance; below, VMs that a rule is of and that are not adopted.

use std::sync::Arc;

use serde::Serialize;
use stelia_api::State;
use stelia_model::Unadopted;

use super::footnotes::SharedReasons;
use crate::shared::daemon::{
    Cause, Description, ListedInstance, Pod, Trouble, Wait, is_own, less_than_isolated, not_isolated, wait_of,
};
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
    /// Why it floats or is contained, as on a terminal.
    #[serde(skip)]
    less: Option<String>,
    #[serde(skip)]
    wait: Option<Wait>,
    /// Those reasons of degradation that every VM of the node has.
    #[serde(skip)]
    of_node: Vec<String>,
    /// All causes as a row on a terminal has them, some of them as numbers of footnotes; `None` in a pipe.
    #[serde(skip)]
    row: Option<String>,
}

impl Instance {
    /// Why it floats, then why isolation is degraded.
    fn problems(&self) -> String {
        if let Some(row) = &self.row {
            return row.clone();
        }
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

    /// The reasons of degradation, those of the whole node or its own.
    fn degraded(&self, of_node: bool) -> impl Iterator<Item = &String> {
        let reasons = self.degraded.iter();
        reasons.filter(move |reason| self.of_node.contains(reason) == of_node)
    }

    fn trouble(&self) -> Trouble {
        let is_degraded = self.degraded(false).next().is_some();
        Trouble::new(is_degraded, &self.state, self.less.is_some())
    }

    /// What degrades this VM's isolation alone, then why it floats or is contained, then what degrades every VM of the node.
    fn causes(&self, degraded: &str) -> Vec<Cause> {
        let reasons = |of_node| {
            let reasons = self.degraded(of_node);
            reasons.map(|reason| (format!("{degraded}{reason}"), Meaning::Broken))
        };
        let less = self.less.iter().map(|less| (less.clone(), Meaning::Attention));
        reasons(false).chain(less).chain(reasons(true)).collect()
    }

    /// The same VM, with the numbers of footnotes for the causes that others have too.
    fn with_numbers(&self, degraded: &str, shared: &SharedReasons<'_>) -> Self {
        let in_words = |text: &str| match (&self.floats, self.less.as_deref() == Some(text)) {
            (Some(floats), true) => format!("floats: {floats}"),
            _ => text.to_owned(),
        };
        let causes = self.causes(degraded);
        let causes = causes.iter().map(|(text, _)| (text.as_str(), in_words(text)));
        Self {
            row: Some(shared.row(causes)),
            ..self.clone()
        }
    }
}

const DEGRADED: &str = "DEGRADED";

/// The last column.
const fn reasons(heading: &'static str) -> Column<Instance> {
    column(heading, Instance::problems).wraps().means(Instance::meaning)
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
    reasons(DEGRADED),
];

const UNADOPTED: [Column<Unadopted>; 6] = [
    column("NOT ADOPTED", |one: &Unadopted| {
        Pod::new(&one.pod, one.pod_name.as_ref()).to_string()
    })
    .yields(2)
    .shortens(),
    column("CONTAINER", |one: &Unadopted| one.container.clone()).yields(3),
    column("RULE", |one: &Unadopted| one.rule.clone()).yields(3),
    column("REASON", |one: &Unadopted| one.reason.clone()).means(|_| Meaning::Attention),
    column("SINCE", |one: &Unadopted| time(one.since_us)).wide(),
    column("WHY", |one: &Unadopted| one.text.clone()).wraps(),
];

/// As JSON the instances alone.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Instances {
    instances: Vec<Instance>,
    #[serde(skip)]
    unadopted: Arc<Vec<Unadopted>>,
}

impl Instances {
    /// With what the daemon describes, as far as the caller may know it. An instance that disappeared meanwhile is left out.
    pub(crate) fn of(found: Vec<ListedInstance>, described: &Description) -> Self {
        let now = output::now();
        let floats = |instance: &stelia_model::Instance| {
            let why = not_isolated(instance).filter(|_| instance.state == State::Floating)?;
            Some(why.at(now))
        };
        let of_node = |instance: &stelia_model::Instance| {
            let reasons = instance.degraded.iter().filter(|reason| !is_own(reason));
            reasons.map(ToString::to_string).collect()
        };
        let instance = |found: ListedInstance| {
            let properties = found.properties?;
            let (_, container, object, state, exclusive_cpus) = found.row;
            let mut described = described.node.instances.iter();
            let described = described.find(|(uid, _)| uid.as_str() == found.pod.pod_uid);
            let described = described.map(|(_, instance)| &**instance);
            Some(Instance {
                floats: described.and_then(floats),
                less: described.and_then(less_than_isolated),
                wait: described.and_then(wait_of),
                of_node: described.map(of_node).unwrap_or_default(),
                row: None,
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
            unadopted: Arc::clone(&described.node.unadopted),
        }
    }

    /// Without the VMs that are not adopted.
    pub(crate) fn without_unadopted(&mut self) {
        self.unadopted = Arc::default();
    }

    /// The table for a terminal: trouble comes first, a cause that several VMs have is a number, which is explained once below the
    /// table, and there is no column CONTAINER where all containers have the same name. The column DEGRADED is REASON where it has more
    /// than reasons of degradation.
    fn folded(&self, style: TextStyle) -> String {
        let (heading, degraded) = if self.instances.iter().any(|one| one.less.is_some()) {
            ("REASON", "degraded: ")
        } else {
            (DEGRADED, "")
        };
        let mut sorted: Vec<&Instance> = self.instances.iter().collect();
        // The sort is stable: equal ones stay in the order of their names.
        sorted.sort_by_key(|one| one.trouble());
        let causes: Vec<Vec<Cause>> = sorted.iter().map(|one| one.causes(degraded)).collect();
        let all = sorted.iter().zip(&causes).flat_map(|(one, causes)| {
            let causes = causes.iter();
            causes.map(move |(text, meaning)| (&one.pod, text.as_str(), *meaning))
        });
        let shared = SharedReasons::of(all);
        let rows = sorted.iter();
        let rows: Vec<Instance> = rows.map(|one| one.with_numbers(degraded, &shared)).collect();
        let is_one_container = rows.len() > 1
            && rows
                .windows(2)
                .all(|pair| matches!(pair, [a, b] if a.container == b.container));
        let left_out = |column: &Column<Instance>| is_one_container && !style.wide && column.heading() == "CONTAINER";
        let columns = COLUMNS.into_iter().filter(|column| !left_out(column));
        let columns: Vec<Column<Instance>> = columns
            .map(|column| {
                if column.heading() == DEGRADED {
                    reasons(heading)
                } else {
                    column
                }
            })
            .collect();
        table(&columns, &rows, style)
            + &shared.footnotes(
                self.instances.iter().filter_map(|one| one.wait.as_ref()),
                output::now(),
                style,
            )
    }
}

impl Render for Instances {
    fn names(&self) -> Vec<String> {
        self.instances.iter().map(|instance| instance.pod.to_string()).collect()
    }

    fn text(&self, style: TextStyle) -> String {
        let instances = if self.instances.is_empty() {
            "No instances.\n".to_owned()
        } else if style.width.is_some() && style.legend {
            // What reads a pipe finds each reason in its row.
            self.folded(style)
        } else {
            table(&COLUMNS, &self.instances, style)
        };
        if self.unadopted.is_empty() {
            instances
        } else {
            format!("{instances}\n{}", table(&UNADOPTED, &*self.unadopted, style))
        }
    }
}

#[cfg(test)]
mod tests {
    use stelia_kubelet::{PodName, PodUid};

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};

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
            less: None,
            wait: None,
            of_node: Vec::new(),
            row: None,
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
            unadopted: Arc::default(),
        };
        let at = |width: usize| {
            list.text(TextStyle {
                width: Some(width),
                ..TextStyle::from(true)
            })
        };
        let narrow = at(80);
        for word in [
            "kubevi", "x7k2p", "isolated", "QEMU", "attached", "CPU", "20", "offline",
        ] {
            assert!(narrow.contains(word), "{word}: {narrow}");
        }
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        insta::assert_snapshot!(at(200), @r"
        POD                                      STATE     CPUS        FLOAT             DEGRADED
        kubevirt/web                             floating  20-21       0-1,18-63,82-127  QEMU has not attached its vCPUs; CPU 20 is offline
        kubevirt/virt-launcher-database-0-x7k2p  isolated  2-17,66-81  0-1,18-63,82-127  -
        ");
        insta::assert_snapshot!(list.text(TextStyle::from(true)), @r"
        POD                                      CONTAINER  STATE     CPUS        FLOAT             DEGRADED
        kubevirt/virt-launcher-database-0-x7k2p  compute    isolated  2-17,66-81  0-1,18-63,82-127  -
        kubevirt/web                             compute    floating  20-21       0-1,18-63,82-127  QEMU has not attached its vCPUs; CPU 20 is offline
        ");
    }

    #[test]
    fn a_reason_of_many_vms_is_printed_once_on_a_terminal_and_in_each_row_of_a_pipe() {
        let why = "kubelet's state cannot be used: cpu_manager_state is empty";
        let mut instances: Vec<Instance> = (0..40)
            .map(|n| instance(&format!("vm-{n:02}"), "isolated", "2", &[why]))
            .collect();
        instances[7].degraded.push("CPU 2 is offline".to_owned());
        instances[9].state = "floating".to_owned();
        for one in &mut instances {
            one.of_node.push(why.to_owned());
        }
        let list = Instances {
            instances,
            unadopted: Arc::default(),
        };
        let text = list.text(TextStyle {
            width: Some(200),
            ..TextStyle::from(true)
        });
        assert!(text.ends_with(&format!("  [1]\n\n[1] 40 VMs: {why}\n")), "{text}");
        assert!(text.contains("  CPU 2 is offline; [1]\n"), "{text}");
        // The cause of the node says nothing about the order.
        let first = text.lines().skip(1).take(3).map(|line| line.split(' ').next());
        assert!(
            first
                .flatten()
                .eq(["kubevirt/vm-07", "kubevirt/vm-09", "kubevirt/vm-00"]),
            "{text}"
        );
        assert_eq!(list.text(TextStyle::from(true)).matches(why).count(), 40);
    }

    #[test]
    fn a_terminal_has_trouble_first_and_the_container_where_it_differs() {
        let mut floating = instance("floats", "floating", "4", &[]);
        floating.floats = Some("vCPUs not attached for 6 min".to_owned());
        floating.less = Some("floats: vCPUs not attached".to_owned());
        let mut other = instance("ends-last", "isolated", "6", &[]);
        other.container = "vm".to_owned();
        let list = |last: Instance| Instances {
            instances: vec![
                instance("a", "isolated", "2", &[]),
                floating.clone(),
                instance("is-degraded", "isolated", "5", &["CPU 5 is offline"]),
                last,
            ],
            unadopted: Arc::default(),
        };
        let style = TextStyle {
            width: Some(120),
            ..TextStyle::from(true)
        };
        insta::assert_snapshot!(list(other).text(style), @r"
        POD                   CONTAINER  STATE     CPUS  FLOAT             REASON
        kubevirt/is-degraded  compute    isolated  5     0-1,18-63,82-127  degraded: CPU 5 is offline
        kubevirt/floats       compute    floating  4     0-1,18-63,82-127  floats: vCPUs not attached for 6 min
        kubevirt/a            compute    isolated  2     0-1,18-63,82-127  -
        kubevirt/ends-last    vm         isolated  6     0-1,18-63,82-127  -
        ");
        let same = list(instance("z", "isolated", "6", &[]));
        let style = TextStyle {
            width: Some(300),
            ..style
        };
        let wide = TextStyle { wide: true, ..style };
        assert_eq!(
            [style, wide].map(|style| same.text(style).contains("CONTAINER")),
            [false, true]
        );
    }

    #[test]
    fn the_cause_for_which_many_vms_float_or_are_contained_is_a_footnote_without_a_time_on_a_terminal() {
        let of = |name: &str, state: &str, floats: Option<&str>, less: &str, degraded: &[&str]| Instance {
            floats: floats.map(str::to_owned),
            less: Some(less.to_owned()),
            ..instance(name, state, "4", degraded)
        };
        let waits = "floats: vCPUs not attached";
        let list = Instances {
            instances: vec![
                of(
                    "a",
                    "contained",
                    None,
                    "contained: the setting partition is member",
                    &[],
                ),
                of("b", "floating", Some("vCPUs not attached for 119 s"), waits, &[]),
                of(
                    "c",
                    "floating",
                    Some("vCPUs not attached for 118 s"),
                    waits,
                    &["CPU 5 is offline"],
                ),
                instance("d", "isolated", "4", &[]),
            ],
            unadopted: Arc::default(),
        };
        let style = TextStyle {
            width: Some(120),
            ..TextStyle::from(true)
        };
        insta::assert_snapshot!(list.text(style), @r"
        POD         STATE      CPUS  FLOAT             REASON
        kubevirt/c  floating   4     0-1,18-63,82-127  degraded: CPU 5 is offline; [1]
        kubevirt/b  floating   4     0-1,18-63,82-127  [1]
        kubevirt/a  contained  4     0-1,18-63,82-127  contained: the setting partition is member
        kubevirt/d  isolated   4     0-1,18-63,82-127  -

        [1] 2 VMs: floats: vCPUs not attached
        ");
        // What reads a pipe finds what it found before.
        let piped = list.text(TextStyle::from(true));
        assert!(piped.lines().next().unwrap().ends_with("  DEGRADED"), "{piped}");
        assert!(
            piped.contains("  vCPUs not attached for 118 s; CPU 5 is offline\n"),
            "{piped}"
        );
        assert!(!piped.contains("contained: "), "{piped}");
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
        assert_eq!([json[1].get("floats"), json[1].get("less")], [None, None]);
    }

    #[test]
    fn an_empty_list_says_so() {
        let none = |unadopted| Instances {
            instances: Vec::new(),
            unadopted: Arc::new(unadopted),
        };
        assert_eq!(none(Vec::new()).text(TextStyle::from(true)), "No instances.\n");
        assert_eq!(output::Form::Json.write(&none(Vec::new())).unwrap(), "[]\n");
        let refused = none(vec![Unadopted {
            pod: PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            pod_name: PodName::new("kubevirt", "virt-launcher-web-x7k2p"),
            container: "compute".to_owned(),
            rule: "kubevirt".to_owned(),
            reason: "NotGuaranteed".to_owned(),
            text: "kubelet gave the container no exclusive CPUs".to_owned(),
            since_us: 1,
        }]);
        insta::assert_snapshot!(refused.text(TextStyle::from(true)), @r"
        No instances.

        NOT ADOPTED                       CONTAINER  RULE      REASON         WHY
        kubevirt/virt-launcher-web-x7k2p  compute    kubevirt  NotGuaranteed  kubelet gave the container no exclusive CPUs
        ");
    }
}
