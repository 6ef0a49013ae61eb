//! `list`: one line per VM, trouble first, below what is wrong on the node; or the VMs that a rule is of and that are not managed. As JSON
//! they are as `Describe` has them.

use std::sync::Arc;

use serde::Serialize;
use stelia_api::Reason;
use stelia_model::{Instance, Unadopted};

use crate::shared::daemon::{Condition, Pod, Rows, Selected, age, counts, fact, is_in_trouble, note, own_cpus};
use crate::shared::output::{
    Column, Fact, Meaning, Render, TextStyle, column, counted, facts, now, paragraph, printable, table,
};

/// What is wrong on the node, one short line each; on a terminal with the command that tells more.
pub(crate) fn node_lines(problems: &[Reason], style: TextStyle) -> String {
    let of = |problem: &Reason| ("NODE".to_owned(), fact(problem), Meaning::Broken);
    let mut lines: Vec<Fact> = problems.iter().map(of).collect();
    lines.dedup();
    if style.is_for_people() && !lines.is_empty() {
        lines.push((String::new(), "steliactl why node".to_owned(), Meaning::Plain));
    }
    facts(&lines, style)
}

fn name(vm: &Instance) -> String {
    Pod::of(&vm.pod, vm).to_string()
}

const COLUMNS: [Column<Instance>; 10] = [
    column("VM", |vm: &Instance| name(vm)).yields(2).shortens(),
    column("STATE", |vm: &Instance| Condition::of(vm).to_string()).means(|vm| Condition::of(vm).meaning()),
    column("CPUS", |vm: &Instance| own_cpus(vm).to_string()).yields(1),
    column("VCPUS", |vm: &Instance| vm.vcpus.len().to_string()).right(),
    column("AGE", |vm: &Instance| age(vm.registered_us, now())),
    column("FLOAT", |vm: &Instance| vm.float.to_string()).wide(),
    column("CLASS", |vm: &Instance| vm.class().to_owned()).wide(),
    column("CONTAINER", |vm: &Instance| vm.container.clone()).wide(),
    column("UID", |vm: &Instance| vm.pod.to_string()).wide(),
    column("NOTE", |vm: &Instance| note(vm).to_owned()).or_nothing(),
];

/// What `Describe` says of a VM, with what the column STATE has.
#[derive(Serialize)]
struct Listed<'a> {
    condition: Condition,
    #[serde(flatten)]
    vm: &'a Instance,
}

/// As JSON the VMs alone.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Vms<'a> {
    vms: Vec<Listed<'a>>,
    #[serde(skip)]
    selected: &'a Selected,
    #[serde(skip)]
    only_problems: bool,
}

impl<'a> Vms<'a> {
    /// The selected ones.
    pub(crate) fn of(selected: &'a Selected) -> Self {
        let listed = |vm: &'a Arc<Instance>| Listed {
            condition: Condition::of(vm),
            vm,
        };
        Self {
            vms: selected.vms.iter().map(listed).collect(),
            selected,
            only_problems: false,
        }
    }

    /// Of these only those in trouble.
    pub(crate) fn in_trouble(mut self) -> Self {
        self.vms.retain(|one| is_in_trouble(one.vm));
        self.only_problems = true;
        self
    }

    /// Counts, and what tells more; for people.
    fn footer(&self, style: TextStyle) -> String {
        let counts = format!("{}.", counts(self.vms.iter().map(|one| one.condition)));
        let counts = (!self.vms.is_empty()).then_some(counts);
        let unmanaged = Some(self.selected.described.node.unadopted.len()).filter(|count| *count > 0);
        let unmanaged = unmanaged.map(|count| format!("{count} not managed: steliactl list --unmanaged"));
        let lines: String = counts
            .into_iter()
            .chain(unmanaged)
            .map(|line| paragraph(&line, style))
            .collect();
        let first = self.vms.iter().find(|one| is_in_trouble(one.vm));
        let why = first.map(|one| format!("steliactl why {}", name(one.vm)));
        let mut below = Rows::default();
        below.say("Also", self.selected.former_in_words().unwrap_or_default());
        below.say("See", why.unwrap_or_default());
        lines + &below.text("", style)
    }
}

impl Render for Vms<'_> {
    fn text(&self, style: TextStyle) -> String {
        if !style.legend {
            return table(&COLUMNS, self.vms.iter().map(|one| one.vm), style);
        }
        let described = &self.selected.described;
        let node = node_lines(&described.problems, style);
        let vms = match self.vms.as_slice() {
            [] => match described.node.instances.len() as u64 {
                0 => "No VMs.\n".to_owned(),
                _ if self.only_problems => {
                    let all = counted(self.selected.vms.len() as u64, "VM");
                    format!("No VM has a problem ({all}).\n")
                }
                all => format!("No VM matches ({} on this node).\n", counted(all, "VM")),
            },
            vms => table(&COLUMNS, vms.iter().map(|one| one.vm), style),
        };
        let footer = style.is_for_people().then(|| self.footer(style));
        node + &vms + &footer.unwrap_or_default()
    }
}

/// The longest configuration file that `--config` reads, which is what the daemon accepts.
pub(crate) const MAX_CONFIG_BYTES: usize = 64 << 10;

/// The answer of `list --unmanaged`.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Unmanaged(pub Vec<Unadopted>);

impl Render for Unmanaged {
    /// For each VM the reason's name, and below it the reason in words.
    fn text(&self, style: TextStyle) -> String {
        if self.0.is_empty() {
            return "No rule matches a VM that is not managed.\n".to_owned();
        }
        let of = |one: &Unadopted| {
            let (pod, reason, rule, age) = (pod(one), &one.reason, &one.rule, age(one.since_us, now()));
            let heading = printable(&format!("{pod}  {reason}  (rule {rule}, {age})"));
            let why = ("     ".to_owned(), one.text.clone(), Meaning::Plain);
            format!("{heading}\n{}", facts(&[why], style))
        };
        self.0.iter().map(of).collect()
    }
}

fn pod(one: &Unadopted) -> Pod {
    Pod::new(&one.pod, one.pod_name.as_ref())
}

#[cfg(test)]
mod tests {
    use stelia_api::{ReasonCode, State};
    use stelia_kubelet::{PodName, PodUid};
    use stelia_model::FormerVm;

    use super::*;
    use crate::shared::daemon::Description;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::shared::output::manual::explained;
    use crate::shared::output::natural;
    use crate::tests::fixtures::{columns as at, headings, never_says, says, selection, wide};

    #[test]
    fn every_column_is_explained() {
        assert_eq!(explained("COLUMNS", Some("list")), headings(&COLUMNS));
    }

    #[test]
    fn numbers_in_names_are_in_their_order() {
        let mut names = ["b/web-19", "b/web-2", "b/web", "a/z", "b/web-2-x", "b/web-a"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["a/z", "b/web", "b/web-2", "b/web-2-x", "b/web-19", "b/web-a"]);
    }

    /// One VM is isolated, one waits and one is degraded; kubelet's file is damaged.
    fn troubled() -> Description {
        let mut described = node();
        let names = ["virt-launcher-database-0-x7k2p", "web"];
        for (uid, name) in PODS.iter().zip(names) {
            let vm = instance_mut(&mut described, uid);
            vm.pod_name = PodName::new("payments-production", name);
            vm.registered_us = now() - 9 * 86_400_000_000;
        }
        let waiting = Instance {
            state: State::Waiting,
            degraded: Vec::new(),
            not_isolated: Some(Reason::of_node(ReasonCode::NoVcpus, "vCPUs not attached")),
            ..Instance::clone(&described.node.instances[PODS[1]])
        };
        let uid = PodUid::parse(PODS[2]).unwrap();
        described.node.instances.insert(uid, Arc::new(waiting));
        described.problems = vec![Reason::of_node(
            ReasonCode::KubeletUnusable,
            "/var/lib/kubelet/cpu_manager_state: checksum mismatch (stored 1, computed 14413152)",
        )];
        described
    }

    #[test]
    fn a_terminal_and_a_pipe_have_the_same_columns_with_trouble_first() {
        let troubled = Selected::all(troubled());
        let vms = Vms::of(&troubled);
        insta::assert_snapshot!(vms.text(at(80)), @r"
        NODE  cpu_manager_state is unusable: no new VMs; running VMs keep their CPUs
              steliactl why node
        VM                                     STATE     CPUS  VCPUS  AGE  NOTE
        payments-production/web                degraded  2         0  9d   no assignment
        payments-production/web                waiting   2         0  9d   no vCPUs yet
        payments-productio…r-database-0-x7k2p  isolated  4-5       2  9d
        3 VMs: 1 isolated, 1 degraded, 1 waiting.
        See  steliactl why payments-production/web
        ");
        let piped = vms.text(TextStyle::from(true));
        says(&piped, &["VM  ", "STATE     CPUS  VCPUS  AGE  NOTE\n"]);
        assert!(!piped.contains("3 VMs"), "{piped}");
        let wide = vms.text(wide());
        says(&wide, &["AGE  FLOAT    CLASS  CONTAINER  UID", "  NOTE\n", PODS[0]]);
        assert_eq!(
            name(vms.vms[2].vm),
            "payments-production/virt-launcher-database-0-x7k2p"
        );
    }

    #[test]
    fn problems_are_the_vms_in_trouble_and_json_has_their_reasons() {
        let troubled = Selected::all(troubled());
        let vms = serde_json::to_value(Vms::of(&troubled).in_trouble()).unwrap();
        assert_eq!(vms.as_array().unwrap().len(), 2);
        assert_eq!(
            (&vms[0]["state"], &vms[0]["condition"], &vms[0]["pod_name"]),
            (&"waiting".into(), &"degraded".into(), &"web".into())
        );
        assert_eq!(vms[0]["degraded"][0]["code"], "no-assignment");
        assert_eq!(vms[1]["not_isolated"]["note"], "no vCPUs yet");
    }

    #[test]
    fn a_former_vm_that_may_run_on_is_named_below_the_count() {
        let mut described = troubled();
        let former = |uid: &str, name: &str, seconds: u64| FormerVm {
            pod: PodUid::parse(uid).unwrap(),
            pod_name: PodName::new("team-a", name),
            ended_us: now() - seconds * 1_000_000,
            ..FormerVm::default()
        };
        let uid = PodUid::parse(PODS[2]).unwrap();
        described.node.instances.remove(&uid);
        let gone = "dddddddd-0000-4000-8000-000000000000";
        let all = [
            (PODS[2], "kafka", 8),
            (gone, "db", 9),
            (PODS[2], "kafka", 90),
            (PODS[0], "web", 9),
        ];
        described.node.former = Arc::new(all.map(|(uid, name, age)| former(uid, name, age)).into());
        let text = |described: &Description| Vms::of(&Selected::all(described.clone())).text(at(80));
        // While kubelet's file cannot be used any of them may run.
        let unusable = text(&described);
        says(
            &unusable,
            &["1 degraded.\nAlso  team-a/db (9s ago), team-a/kafka (8s ago): released or ended"],
        );
        described.problems.clear();
        never_says(&text(&described), &["team-a/db"]);
        says(&text(&described), &["\nAlso  team-a/kafka (8s ago): released"]);
        let mut none = Selected::all(described.clone());
        none.selection = selection(&["-n", "none"]);
        none.vms.clear();
        let piped = TextStyle { width: None, ..at(80) };
        says(&Vms::of(&none).text(piped), &["No VM matches (2 VMs on this node)."]);
        described.node.instances.retain(|uid, _| uid.as_str() == PODS[0]);
        says(
            &Vms::of(&Selected::all(described.clone())).in_trouble().text(at(80)),
            &["No VM has a problem (1 VM)."],
        );
        let roots = crate::shared::kernel::Roots::below("/nonexistent".as_ref());
        let map = crate::view::map::gather(&Selected::all(described), &roots);
        says(&map.text(at(80)), &["team-a/kafka", "released or ended"]);
    }

    #[test]
    fn without_vms_it_says_so_and_names_the_command_for_those_of_rules() {
        let mut described = Description::default();
        let text = |described: &Description| Vms::of(&Selected::all(described.clone())).text(at(80));
        assert_eq!(text(&described), "No VMs.\n");
        assert!(Unmanaged(Vec::new()).text(at(80)).starts_with("No rule"));
        described.node.unadopted = Arc::new(vec![Unadopted {
            pod: PodUid::parse(PODS[0]).unwrap(),
            pod_name: PodName::new("kubevirt", "virt-launcher-web-x7k2p"),
            container: "compute".to_owned(),
            rule: "kubevirt".to_owned(),
            reason: "NotGuaranteed".to_owned(),
            text: "kubelet gave the container no exclusive CPUs\u{1b}[2J".to_owned(),
            since_us: now() - 300_000_000,
        }]);
        says(&text(&described), &["1 not managed", "--unmanaged"]);
        let unmanaged = Unmanaged(described.node.unadopted.to_vec());
        assert_eq!(serde_json::to_value(&unmanaged).unwrap()[0]["reason"], "NotGuaranteed");
        insta::assert_snapshot!(unmanaged.text(at(80)), @r"
        kubevirt/virt-launcher-web-x7k2p  NotGuaranteed  (rule kubevirt, 5m)
               kubelet gave the container no exclusive CPUs?[2J
        ");
    }
}
