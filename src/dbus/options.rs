//! The `a{sv}` options of calls, by name and type.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};

use serde::Deserialize;
use stelia_api::dict::{from_dict, only_known};
use stelia_api::{Error, ErrorKind};
use stelia_koordinator::allocator::evaluate::EvaluateRequest;
use stelia_koordinator::allocator::{AllocationRequest, Schedule};
use stelia_koordinator::report::ApiVersion;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::Profile;
use stelia_settings::{Isolation, LatencyLevel, QuietRequest, is_name};
use zbus::Variant;

use super::manager::Options;
use crate::engine::ObjectForm;

/// Options of RegisterInstance that are read apart: a descriptor, and a path that only administrators may give.
const REGISTER: [&str; 2] = ["anchor", "origin-cgroup"];

/// Options of RegisterInstance that are not the allocator's.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct RegisterOptions {
    latency: LatencyLevel,
    cache_class: Option<String>,
    isolation: Isolation,
}

/// Options of NodeTopology.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct ReportOptions {
    profile: Profile,
    api_version: Option<ApiVersion>,
    pods_fingerprint: Method,
    node_name: Option<String>,
}

/// Refuse an option that the call does not have.
pub(super) fn known(options: &Options, known: &[&str]) -> Result<(), Error> {
    only_known(options, |name| known.contains(&name))
}

/// A boolean; absent is false.
pub(super) fn flag(options: &Options, name: &str) -> Result<bool, Error> {
    match options.get(name).map(|value| &**value) {
        None => Ok(false),
        Some(Variant::Bool(yes)) => Ok(*yes),
        Some(_) => Err(ErrorKind::InvalidArgument.because(format!("option {name:?} must be a boolean (b)"))),
    }
}

/// A number within bounds; absent is the default.
pub(super) fn number(options: &Options, name: &str, allowed: RangeInclusive<u32>, default: u32) -> Result<u32, Error> {
    let wrong = || {
        let (least, most) = (allowed.start(), allowed.end());
        ErrorKind::InvalidArgument.because(format!("option {name:?} must be a number (u) from {least} to {most}"))
    };
    match options.get(name).map(|value| &**value) {
        None => Ok(default),
        Some(Variant::U32(number)) if allowed.contains(number) => Ok(*number),
        Some(_) => Err(wrong()),
    }
}

/// A descriptor.
pub(super) fn descriptor(options: &Options, name: &str) -> Result<Option<OwnedFd>, Error> {
    let Some(value) = options.get(name) else {
        return Ok(None);
    };
    match &**value {
        Variant::Fd(fd) => fd.as_fd().try_clone_to_owned().map(Some).map_err(|cause| {
            ErrorKind::Failed.because(format!("duplicate the descriptor of option {name:?}: {cause}"))
        }),
        other => Err(ErrorKind::InvalidArgument.because(format!(
            "option {name:?} must be a file descriptor (h), not {}",
            other.value_signature()
        ))),
    }
}

/// A time from when to when, microseconds since the epoch; 0 at its end is now.
pub(super) fn times(since_us: u64, until_us: u64) -> Result<(u64, Option<u64>), Error> {
    let until_us = (until_us != 0).then_some(until_us);
    if until_us.is_none_or(|until_us| since_us <= until_us) {
        Ok((since_us, until_us))
    } else {
        Err(ErrorKind::InvalidArgument.because("since_us is later than until_us"))
    }
}

/// The object that is asked for, and the name that is given for the node.
pub(super) fn report(options: &Options) -> Result<(ObjectForm, Option<String>), Error> {
    let asked: ReportOptions = from_dict(options, &[])?;
    let profile = asked.profile;
    let refused = || {
        let versions: Vec<&str> = profile.versions().iter().map(|version| version.name()).collect();
        ErrorKind::InvalidArgument.because(format!(
            "option \"api-version\" must be {} with the profile {}",
            versions.join(" or "),
            profile.name()
        ))
    };
    let form = ObjectForm {
        profile,
        version: profile.version(asked.api_version).ok_or_else(refused)?,
        method: asked.pods_fingerprint,
    };
    Ok((form, asked.node_name))
}

/// One request of EvaluatePlacement.
pub(super) fn evaluation(options: &Options) -> Result<EvaluateRequest, Error> {
    let (allocation, options) = from_dict(options, &[])?;
    Ok(EvaluateRequest { allocation, options })
}

/// RegisterInstance: what is asked of the allocator, with a scheduler's choice; what is done for the CPUs besides keeping tasks off
/// them; and who is to use the container's exclusive CPUs.
pub(super) fn registration(options: &Options) -> Result<(AllocationRequest, QuietRequest, Isolation), Error> {
    let (request, schedule, own): (AllocationRequest, Schedule, RegisterOptions) = from_dict(options, &REGISTER)?;
    if own.cache_class.as_deref().is_some_and(|class| !is_name(class)) {
        return Err(ErrorKind::InvalidArgument.because("option \"cache-class\" must be a cache class's name"));
    }
    let quiet = QuietRequest {
        latency: own.latency,
        cache_class: own.cache_class,
    };
    Ok((AllocationRequest { schedule, ..request }, quiet, own.isolation))
}

#[cfg(test)]
mod tests {
    use stelia_koordinator::allocator::evaluate::{SchedulerOptions, ScoringStrategy};
    use stelia_koordinator::allocator::{
        CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
    };
    use stelia_kubelet::QosClass;

    use super::*;

    fn options(pairs: Vec<(&str, Variant<'static>)>) -> Options {
        let own = |(name, value): (&str, Variant<'static>)| (name.to_owned(), value.try_into().unwrap());
        pairs.into_iter().map(own).collect()
    }

    #[test]
    fn a_report_is_koordinators_unless_another_is_asked_for() {
        let asked = |pairs: Vec<(&'static str, &'static str)>| {
            let pairs = pairs.into_iter().map(|(name, value)| (name, Variant::from(value)));
            report(&options(pairs.collect())).map(|(form, _)| form)
        };
        let expected = |profile, version, method| ObjectForm {
            profile,
            version,
            method,
        };
        let (first, second) = (ApiVersion::V1Alpha1, ApiVersion::V1Alpha2);
        let usual = Method::WithExclusiveResources;
        assert_eq!(asked(vec![]).unwrap(), expected(Profile::Koordinator, first, usual));
        let versioned = asked(vec![("api-version", "v1alpha2")]).unwrap();
        assert_eq!(versioned, expected(Profile::Koordinator, second, usual));
        let lean = asked(vec![("profile", "nrt"), ("pods-fingerprint", "all")]).unwrap();
        assert_eq!(lean, expected(Profile::Nrt, second, Method::All));
        assert_eq!(asked(vec![("profile", "stelia")]).unwrap().version, second);
        for (pairs, says) in [
            (vec![("profile", "lean")], "koordinator, nrt, stelia"),
            (vec![("pods-fingerprint", "none")], "with-exclusive-resources, all"),
            (
                vec![("profile", "nrt"), ("api-version", "v1alpha1")],
                "must be v1alpha2 with the profile nrt",
            ),
        ] {
            let told = asked(pairs).unwrap_err().to_string();
            assert!(told.contains(says), "{told}");
        }
    }

    #[test]
    fn every_option_of_an_allocation_is_read() {
        let given = options(vec![
            ("cpus", Variant::from(4u32)),
            ("qos", Variant::from("LSR")),
            ("cpu-bind-policy", Variant::from("FullPCPUs")),
            ("required-cpu-bind-policy", Variant::from("SpreadByPCPUs")),
            ("scheduled-cpuset", Variant::from("0-1,6-7")),
            ("scheduled-numa-nodes", Variant::from("0-1")),
            ("cpu-limit", Variant::from(2500u32)),
            ("cpu-exclusive-policy", Variant::from("NUMANodeLevel")),
            ("numa-allocate-strategy", Variant::from("DistributeEvenly")),
            ("numa-topology-alignment-policy", Variant::from("SingleNUMANode")),
        ]);
        assert!(
            evaluation(&given).is_err(),
            "a scheduler that asks has chosen nothing yet"
        );
        let expected = AllocationRequest {
            cpus: Some(4),
            qos: Some(Qos::Lsr),
            cpu_bind_policy: Some(CpuBindPolicy::FullPcpus),
            required_cpu_bind_policy: Some(CpuBindPolicy::SpreadByPcpus),
            cpu_limit: Some(2500),
            cpu_exclusive_policy: Some(CpuExclusivePolicy::NumaNodeLevel),
            numa_allocate_strategy: Some(NumaAllocateStrategy::DistributeEvenly),
            numa_topology_alignment_policy: Some(NumaTopologyAlignmentPolicy::SingleNumaNode),
            schedule: Schedule {
                cpus: Some("0-1,6-7".parse().unwrap()),
                nodes: Some([0, 1].into()),
            },
        };
        assert_eq!(registration(&given).unwrap().0, expected);
        assert_eq!(registration(&Options::new()).unwrap().0, AllocationRequest::default());
    }

    #[test]
    fn a_wrong_type_or_value_is_named_with_what_is_allowed() {
        for (name, value, says) in [
            ("cpus", Variant::from("4"), "number (u), not s"),
            ("cpu-limit", Variant::from(-1i32), "number (u), not i"),
            ("qos", Variant::from("lse"), "LSE, LSR, LS, BE"),
            ("qos", Variant::from(1u32), "string (s), not u"),
            ("cpu-bind-policy", Variant::from("Full"), "FullPCPUs"),
            ("scheduled-cpuset", Variant::from("0-3;"), "3;"),
            ("scheduled-cpuset", Variant::from(""), "empty"),
            ("scheduled-numa-nodes", Variant::from(0u32), "string (s), not u"),
            ("kubernetes-class", Variant::from("Burstable"), "not known"),
        ] {
            let refused = registration(&options(vec![(name, value)])).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{name} was taken");
            let text = refused.text;
            assert!(text.contains(name) && text.contains(says), "{text}");
        }
    }

    #[test]
    fn what_a_scheduler_asks_about_is_read_by_the_names_of_a_registration() {
        let given = options(vec![
            ("kubernetes-class", Variant::from("Burstable")),
            ("qos", Variant::from("LS")),
            ("cpu-limit", Variant::from(2500u32)),
            ("cpu-bind-policy", Variant::from("ConstrainedBurst")),
            ("scoring-strategy", Variant::from("BalancedAllocation")),
        ]);
        let expected = EvaluateRequest {
            allocation: AllocationRequest {
                qos: Some(Qos::Ls),
                cpu_limit: Some(2500),
                cpu_bind_policy: Some(CpuBindPolicy::ConstrainedBurst),
                ..AllocationRequest::default()
            },
            options: SchedulerOptions {
                kubernetes_class: Some(QosClass::Burstable),
                scoring_strategy: ScoringStrategy::BalancedAllocation,
            },
        };
        assert_eq!(evaluation(&given).unwrap(), expected);
        assert_eq!(evaluation(&Options::new()).unwrap(), EvaluateRequest::default());
        for (name, value, says) in [
            ("anchor", Variant::from(1u32), "not known"),
            (
                "scoring-strategy",
                Variant::from("Most"),
                "MostAllocated, BalancedAllocation, LeastAllocated",
            ),
            (
                "kubernetes-class",
                Variant::from("guaranteed"),
                "Guaranteed, Burstable, BestEffort",
            ),
        ] {
            let refused = evaluation(&options(vec![(name, value)])).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{name} was taken");
            let text = refused.text;
            assert!(text.contains(name) && text.contains(says), "{text}");
        }
    }

    #[test]
    fn the_node_topology_is_of_a_version_that_exists() {
        assert_eq!(report(&Options::new()).unwrap().0.version, ApiVersion::V1Alpha1);
        let given = |value| options(vec![("api-version", value)]);
        assert_eq!(
            report(&given(Variant::from("v1alpha2"))).unwrap().0.version,
            ApiVersion::V1Alpha2
        );
        let name = options(vec![("node-name", Variant::from(1u32))]);
        for (wrong, says) in [
            (given(Variant::from("v1")), "v1alpha1, v1alpha2"),
            (given(Variant::from(1u32)), "string (s), not u"),
            (name, "string (s), not u"),
        ] {
            let refused = report(&wrong).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "it was taken");
            assert!(refused.text.contains(says), "{}", refused.text);
        }
    }

    #[test]
    fn what_is_ordered_for_the_cpus_is_read_by_name() {
        let given = options(vec![
            ("latency", Variant::from("low")),
            ("cache-class", Variant::from("gold")),
        ]);
        let (_, order, _) = registration(&given).unwrap();
        assert_eq!(
            (order.latency, order.cache_class.as_deref()),
            (LatencyLevel::Low, Some("gold"))
        );
        for (name, value, says) in [
            ("latency", Variant::from("fast"), "default, low, polling"),
            ("latency", Variant::from(20u32), "string (s), not u"),
            ("cache-class", Variant::from("../gold"), "name"),
        ] {
            let refusal = registration(&options(vec![(name, value)])).unwrap_err();
            assert!(refusal.text.contains(says), "{refusal}");
        }
    }
}
