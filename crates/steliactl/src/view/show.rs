//! `show`: a VM on a few lines, and its threads.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use stelia_api::State;
use stelia_kernel::locality::size;
use stelia_model::{Instance, PinnedThread};
use stelia_settings::Isolation;

use crate::shared::daemon::{Condition, Failure, Pod, Rows, Selected, age, own_cpus};
use crate::shared::kernel::Roots;
use crate::shared::kernel::locality::VmLocality;
use crate::shared::kernel::threads::{self, Process};
use crate::shared::output::{Column, Render, TextStyle, column, counted, now, paragraph, printable, table};

/// The columns of the first line of a VM, with its state at the right.
const HEADING_WIDTH: usize = 80;
/// The vCPUs that are named without `-l`.
const MAX_VCPUS: usize = 8;

pub(crate) const THREADS: [Column<threads::Thread>; 5] = [
    column("TID", |thread| thread.tid.to_string()),
    column("THREAD", |thread: &threads::Thread| thread.name.clone()).yields(1),
    column("WHERE", |thread: &threads::Thread| where_it_runs(&thread.cgroup))
        .yields(2)
        .shortens(),
    column("CPUS", |thread: &threads::Thread| thread.allowed_cpus.clone()).yields(1),
    column("CPU TIME", |thread: &threads::Thread| {
        let hundredths = thread.cpu_time_us / 10_000;
        format!("{}.{:02}s", hundredths / 100, hundredths % 100)
    })
    .right(),
];

/// Where a thread of this cgroup runs, in words; a cgroup that is none of the VM's is a path.
fn where_it_runs(cgroup: &str) -> String {
    match cgroup.split_once('/').unwrap_or((cgroup, "")) {
        ("vcpu", _) => "its own CPU".to_owned(),
        ("float", _) => "shared CPUs".to_owned(),
        ("origin", "") => "container cgroup".to_owned(),
        ("origin", below) => format!("container cgroup/{below}"),
        _ => cgroup.to_owned(),
    }
}

/// A VM; as JSON what `Describe` says of it, with what only root may read beside it.
#[derive(Serialize)]
struct VmDetails {
    instance: Arc<Instance>,
    /// `None` where the daemon has no report.
    locality: Option<VmLocality>,
    processes: Vec<Process>,
}

/// The selected VMs; as JSON one that is named is an object, and what a pattern selects is a list.
pub(crate) struct Shown<'a> {
    vms: Vec<VmDetails>,
    selected: &'a Selected,
    details: Details,
}

/// What is printed of each VM besides the least.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Details {
    pub threads: bool,
    /// Nothing is shortened or left out, and its cgroups and NUMA nodes are there too.
    pub full: bool,
}

/// The selected VMs.
///
/// # Errors
/// The processes may not be read.
pub(crate) fn gather<'a>(selected: &'a Selected, roots: &Roots, details: Details) -> Result<Shown<'a>, Failure> {
    let vms = selected.vms.iter().map(|instance| {
        let processes = threads::processes(roots, instance)?;
        Ok(VmDetails {
            instance: Arc::clone(instance),
            locality: VmLocality::of(&selected.described, instance.pod.as_str(), roots, &processes),
            processes,
        })
    });
    Ok(Shown {
        vms: vms.collect::<Result<_, Failure>>()?,
        selected,
        details,
    })
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.vms.as_slice() {
            [one] if self.selected.is_name() => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl Render for Shown<'_> {
    fn text(&self, style: TextStyle) -> String {
        let vms = self.vms.iter().map(|vm| vm.text(self.details, style));
        let former = self.selected.former_in_words().into_iter();
        let former = former.map(|words| paragraph(&printable(&words), style));
        let texts: Vec<String> = vms.chain(former).collect();
        if texts.is_empty() {
            return "No VM matches.\n".to_owned();
        }
        texts.join("\n")
    }
}

impl VmDetails {
    fn pod(&self) -> Pod {
        Pod::of(&self.instance.pod, &self.instance)
    }

    fn text(&self, details: Details, style: TextStyle) -> String {
        let instance = &self.instance;
        let (name, condition) = (printable(&self.pod().to_string()), Condition::of(instance));
        let state = match condition {
            Condition::Degraded => format!("{}, DEGRADED", instance.state),
            condition => condition.to_string(),
        };
        let room = style.width.map_or(HEADING_WIDTH, |width| width.min(HEADING_WIDTH));
        let gap = room.saturating_sub(name.chars().count() + state.len()).max(2);
        let state = condition.meaning().paint(&state, style);
        let mut text = format!("{name}{:gap$}{state}\n", "");
        text += &self.rows(details).text("  ", style);
        if let Some(locality) = self.locality.as_ref().filter(|_| details.full) {
            text += &locality.text(style);
        }
        for process in self.processes.iter().filter(|_| details.threads) {
            if style.legend {
                let inner = process.container_pid;
                let inner = inner.map(|pid| format!(", {pid} in the container")).unwrap_or_default();
                text += &format!("\n{} (pid {}{inner})\n", printable(&process.name), process.pid);
            }
            text += &table(&THREADS, &process.threads, style);
        }
        text
    }

    fn rows(&self, details: Details) -> Rows {
        let instance = &self.instance;
        let mut rows = Rows::default();
        rows.reasons(instance);
        if !rows.0.is_empty() {
            rows.say("See", format!("steliactl why {}", self.pod()));
        }
        rows.say("CPUs", self.cpus());
        if let Some(resize) = &instance.pending_resize {
            let (from, to) = (resize.from, resize.to);
            let text = format!("from {from} to {to} CPUs; the guest has to unplug vCPUs");
            rows.say("Resize", text);
        }
        rows.say("vCPUs", self.vcpus(details));
        rows.say("Threads", self.others(details));
        let limit = instance.memory_limit.map(|limit| format!("limit {}", size(limit)));
        let local = self.locality.as_ref().and_then(VmLocality::memory_in_words);
        let memory: Vec<String> = local.into_iter().chain(limit).collect();
        rows.say("Memory", memory.join(", "));
        let remote = self.locality.iter().flat_map(VmLocality::remote);
        remote.for_each(|part| rows.say("Remote", part));
        let ages = [
            (instance.state.name(), instance.state_since_us),
            ("registered", instance.registered_us),
        ];
        let known = ages.into_iter().filter(|(_, us)| *us > 0);
        let known: Vec<String> = known
            .map(|(what, us)| format!("{what} for {}", age(us, now())))
            .collect();
        rows.say("Age", known.join(", "));
        let rule = instance.adopted_by.as_ref();
        let rule = rule.map(|rule| format!(", adopted by rule {rule}")).unwrap_or_default();
        rows.say(
            "Pod",
            format!("{}, container {}{rule}", instance.pod, instance.container),
        );
        let (scope, origin) = (&instance.scope, &instance.origin);
        if details.full {
            rows.say("Unit", scope.name());
            rows.say("Cgroup", scope.as_str());
            rows.say("Cgroup", format!("{origin} (container cgroup)"));
        } else {
            rows.say("Unit", format!("{}  (-l: full names, cgroups)", scope.name()));
        }
        rows
    }

    fn cpus(&self) -> String {
        let instance = &self.instance;
        let own = own_cpus(instance);
        let mut text = if own.is_empty() {
            format!("none of its own, runs on {}", instance.float)
        } else {
            own.to_string()
        };
        let locality = self.locality.as_ref().filter(|one| !one.nodes().is_empty());
        if let Some(locality) = locality.filter(|_| instance.state != State::Evicted) {
            text += &format!(" (NUMA {})", locality.nodes());
        }
        if !instance.class().is_empty() {
            text += &format!(", class {}", instance.class());
        }
        // Without a partition it is a member of its parent's.
        if !["", "member"].contains(&instance.partition.as_str()) {
            text += &format!(", partition type {}", instance.partition);
        }
        text
    }

    fn vcpus(&self, details: Details) -> String {
        let all = &self.instance.vcpus;
        let most = if details.full { all.len() } else { MAX_VCPUS };
        let is_pinned = matches!(self.instance.state, State::Isolated | State::Pinned);
        if !is_pinned && !details.full && !all.is_empty() {
            return format!("{}, none pinned", all.len());
        }
        let one = |PinnedThread { thread, .. }: &PinnedThread| {
            let pinned = thread.cpu.filter(|_| is_pinned);
            let cpu = pinned.map_or("not pinned".to_owned(), |cpu| format!("on CPU {cpu}"));
            let tid = if details.full {
                format!(" (tid {})", thread.task.id)
            } else {
                String::new()
            };
            format!("{} {cpu}{tid}", thread.role.to_string().trim_start_matches("vCPU "))
        };
        let mut named: Vec<String> = all.iter().take(most).map(one).collect();
        if all.len() > most {
            named.push(format!("{} more (-l)", all.len() - most));
        }
        named.join(", ")
    }

    /// The threads that are no vCPUs.
    fn others(&self, details: Details) -> String {
        let threads = || self.processes.iter().flat_map(|process| &process.threads);
        let left = match self.instance.isolation {
            Isolation::Vcpus => "in the container cgroup".to_owned(),
            Isolation::Container => "on its CPUs".to_owned(),
        };
        let shared = format!("on shared CPUs {}", self.instance.float);
        let count = |is_float| {
            threads()
                .filter(|one| one.cgroup != "vcpu" && (one.cgroup == "float") == is_float)
                .count()
        };
        let parts = [(count(true), shared), (count(false), left)].into_iter();
        let parts = parts.filter(|(count, _)| *count > 0);
        let parts = parts.map(|(count, place)| format!("{} {place}", counted(count as u64, "thread")));
        let parts: Vec<String> = parts.collect();
        let hint = if details.threads || parts.is_empty() {
            ""
        } else {
            " (--threads lists them)"
        };
        parts.join(", ") + hint
    }
}

#[cfg(test)]
mod tests {
    use stelia_api::{Reason, ReasonCode, State};
    use stelia_kernel::cgroup::CgroupPath;
    use stelia_kubelet::{PodName, PodUid};

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::{columns, says};

    fn text_of(full: bool, change: impl Fn(&mut Instance)) -> String {
        let mut described = node();
        let instance = instance_mut(&mut described, PODS[0]);
        instance.pod_name = PodName::new("team-b", "database-1");
        instance.memory_limit = Some(4 << 30);
        instance.partition = "isolated".to_owned();
        instance.scope = CgroupPath::slice().child("a.scope");
        change(instance);
        let mut selected = Selected::all(described);
        selected.vms.retain(|vm| vm.pod.as_str() == PODS[0]);
        let roots = Roots::below("/nonexistent".as_ref());
        let details = Details {
            full,
            ..Details::default()
        };
        let shown = gather(&selected, &roots, details).unwrap();
        shown.text(columns(80))
    }

    #[test]
    fn problem_effect_and_fix_come_first() {
        let text = text_of(false, |instance| {
            let pod = PodUid::parse(PODS[0]).unwrap();
            instance.degraded = vec![Reason::of(
                &pod,
                ReasonCode::Evicted,
                "kubelet gave CPU 5 to another pod\x1b[2J",
            )];
        });
        insta::assert_snapshot!(text, @r"
        team-b/database-1                                             isolated, DEGRADED
          Problem  kubelet gave CPU 5 to another pod?[2J
          Effect   its vCPUs run on shared CPUs
          Fix      recreate the pod: kubectl delete pod -n NAMESPACE NAME
          See      steliactl why team-b/database-1
          CPUs     4-5, partition type isolated
          vCPUs    0 on CPU 4, 1 on CPU 5
          Memory   limit 4.0 GiB
          Pod      aaaaaaaa-0000-4000-8000-000000000000, container vm
          Unit     a.scope  (-l: full names, cgroups)
        ");
    }

    #[test]
    fn one_that_waits_says_why_and_full_names_have_cgroups() {
        let text = text_of(true, |instance| {
            instance.state = State::Waiting;
            instance.vcpus.clear();
            instance.not_isolated = Some(Reason::of_node(ReasonCode::NoVcpus, "vCPUs not attached"));
        });
        says(
            &text,
            &[
                "waiting\n",
                "  Because  ",
                "  See  ",
                "  Cgroup  ",
                " (container cgroup)",
            ],
        );
    }
}
