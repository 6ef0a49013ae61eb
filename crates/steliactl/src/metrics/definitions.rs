//! Every metric: its name, type, labels and meaning. A test compares them with `docs/metrics.md`.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Gauge,
    /// Only grows, while the daemon (or the thread, or the cgroup) lives.
    Counter,
    /// Durations.
    Histogram,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name in OpenMetrics; a counter's samples end in `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Definition {
    const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self::of(Kind::Gauge, name, labels, help)
    }

    const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self::of(Kind::Counter, name, labels, help)
    }

    const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self::of(Kind::Histogram, name, labels, help)
    }

    const fn of(kind: Kind, name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self {
            name,
            kind,
            labels,
            help,
        }
    }

    /// The unit, which is the end of the name.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(unit))
    }

    pub fn samples(&self) -> Vec<String> {
        let endings: &[&str] = match self.kind {
            Kind::Gauge => &[""],
            Kind::Counter => &["_total"],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
        };
        endings.iter().map(|ending| format!("{}{ending}", self.name)).collect()
    }
}

const POD: &[&str] = &["pod_uid"];
const VCPU: &[&str] = &["pod_uid", "vcpu", "cpu"];

pub(super) const UP: Definition = Definition::gauge("stelia_up", &[], "Whether the daemon answered: 1 or 0.");
pub(super) const BUILD: Definition =
    Definition::gauge("stelia_build_info", &["version"], "Always 1: the daemon that runs.");
pub(super) const STARTED: Definition = Definition::gauge(
    "stelia_start_time_seconds",
    &[],
    "When the daemon started, since the epoch.",
);

pub(super) const INSTANCES: Definition = Definition::gauge("stelia_instances", &["state"], "Instances by state.");
pub(super) const DEGRADED: Definition = Definition::gauge(
    "stelia_instances_degraded",
    &[],
    "Instances whose isolation is degraded.",
);
pub(super) const UNREADABLE: Definition = Definition::gauge(
    "stelia_scopes_unreadable",
    &[],
    "Scopes in stelia.slice whose record cannot be used; steliad does not touch them.",
);
pub(super) const CPUS: Definition = Definition::gauge(
    "stelia_cpus",
    &["owner"],
    "CPUs by owner: exclusive (an instance's), pod (another pod's exclusive ones), shared, reserved (for the system), unknown, offline.",
);

pub(super) const KUBELET_USABLE: Definition = Definition::gauge(
    "stelia_kubelet_state_usable",
    &[],
    "Whether kubelet's cpu_manager_state can be used: 1 or 0.",
);
pub(super) const KUBELET_SINCE: Definition = Definition::gauge(
    "stelia_kubelet_state_since_timestamp_seconds",
    &[],
    "Since when that is so.",
);
pub(super) const KUBELET_MODIFIED: Definition = Definition::gauge(
    "stelia_kubelet_state_modified_timestamp_seconds",
    &[],
    "When that file was written last.",
);
pub(super) const FOLLOW: Definition = Definition::histogram(
    "stelia_kubelet_follow_seconds",
    &[],
    "From kubelet's write to the end of the pass that followed it.",
);

pub(super) const PASSES: Definition = Definition::counter(
    "stelia_passes",
    &["trigger"],
    "Passes by what made them happen: event, audit, call, reload.",
);
pub(super) const PASS_TIME: Definition =
    Definition::histogram("stelia_pass_duration_seconds", &["trigger"], "How long passes took.");
pub(super) const STEPS: Definition = Definition::counter("stelia_steps", &[], "Steps taken, failed ones included.");
pub(super) const FAILED: Definition =
    Definition::counter("stelia_steps_failed", &[], "Steps that failed; they are tried again.");
pub(super) const WRITES: Definition = Definition::counter(
    "stelia_cgroup_writes",
    &[],
    "Writes to cgroup files, cgroups made and removed.",
);
pub(super) const MOVES: Definition = Definition::counter(
    "stelia_cgroup_moves",
    &[],
    "Processes and threads moved between cgroups.",
);
pub(super) const DRIFT_FOUND: Definition =
    Definition::counter("stelia_drift_found", &[], "Things found changed by somebody else.");
pub(super) const DRIFT_REPAIRED: Definition =
    Definition::counter("stelia_drift_repaired", &[], "Those put right in the same pass.");
pub(super) const CALL_TIME: Definition = Definition::histogram(
    "stelia_call_duration_seconds",
    &["call"],
    "How long D-Bus calls took, refused ones included; its count is the number of calls.",
);
pub(super) const REFUSALS: Definition = Definition::counter(
    "stelia_refusals",
    &["error"],
    "Calls answered with an error, by its name.",
);

pub(super) const INSTANCE: Definition = Definition::gauge(
    "stelia_instance_info",
    &["pod_uid", "container", "state", "class"],
    "Always 1: an instance, its state, and its QoS class where steliad chose its CPUs.",
);
pub(super) const REASONS: Definition = Definition::gauge(
    "stelia_instance_degraded_reasons",
    POD,
    "Reasons why an instance's isolation is degraded; 0 where it is not.",
);
pub(super) const EXCLUSIVE: Definition =
    Definition::gauge("stelia_instance_exclusive_cpus", POD, "Exclusive CPUs of an instance.");
pub(super) const REGISTERED: Definition = Definition::gauge(
    "stelia_instance_registered_timestamp_seconds",
    POD,
    "When an instance was registered.",
);
pub(super) const ISOLATED: Definition = Definition::gauge(
    "stelia_instance_isolated_timestamp_seconds",
    POD,
    "When its vCPUs were isolated or contained; absent before.",
);
pub(super) const MEMORY: Definition = Definition::gauge(
    "stelia_instance_memory_bytes",
    POD,
    "Memory of an instance's scope and of its container's own cgroup together.",
);
pub(super) const AWAY: Definition = Definition::gauge(
    "stelia_instance_memory_away_ratio",
    POD,
    "Share of an instance's memory that is on other NUMA nodes than its CPUs', 0 to 1; the page cache is not counted. Absent where it has no CPUs of its own.",
);
pub(super) const FLOAT: Definition = Definition::counter(
    "stelia_instance_float_cpu_seconds",
    POD,
    "CPU time of everything of an instance that is no vCPU.",
);

pub(super) const RUN: Definition = Definition::counter("stelia_vcpu_run_seconds", VCPU, "Time a vCPU thread ran.");
pub(super) const DELAY: Definition = Definition::counter(
    "stelia_vcpu_run_delay_seconds",
    VCPU,
    "Time a vCPU thread could have run and waited for a CPU: next to nothing on a CPU of its own.",
);
pub(super) const INVOLUNTARY: Definition = Definition::counter(
    "stelia_vcpu_involuntary_switches",
    VCPU,
    "How often a vCPU thread was switched out while it could have run on.",
);

/// All metrics, in the order in which they are printed.
pub const ALL: [&Definition; 32] = [
    &UP,
    &BUILD,
    &STARTED,
    &INSTANCES,
    &DEGRADED,
    &UNREADABLE,
    &CPUS,
    &KUBELET_USABLE,
    &KUBELET_SINCE,
    &KUBELET_MODIFIED,
    &FOLLOW,
    &PASSES,
    &PASS_TIME,
    &STEPS,
    &FAILED,
    &WRITES,
    &MOVES,
    &DRIFT_FOUND,
    &DRIFT_REPAIRED,
    &CALL_TIME,
    &REFUSALS,
    &INSTANCE,
    &REASONS,
    &EXCLUSIVE,
    &REGISTERED,
    &ISOLATED,
    &MEMORY,
    &AWAY,
    &FLOAT,
    &RUN,
    &DELAY,
    &INVOLUNTARY,
];
