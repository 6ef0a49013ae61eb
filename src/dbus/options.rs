//! The `a{sv}` options of calls, by name and type.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};

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

/// Options of RegisterInstance that are not the allocator's: a descriptor, a path that only administrators may give, and what is
/// ordered for the CPUs besides.
const REGISTER: [&str; 5] = ["anchor", "origin-cgroup", "latency", "cache-class", "isolation"];

/// Options of NodeTopology.
pub(super) const NODE_TOPOLOGY: [&str; 4] = ["api-version", "node-name", "profile", "pods-fingerprint"];

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

/// A text.
pub(super) fn text(options: &Options, name: &str) -> Result<Option<String>, Error> {
    match options.get(name).map(|value| &**value) {
        None => Ok(None),
        Some(Variant::Str(text)) => Ok(Some(text.as_str().to_owned())),
        Some(other) => Err(ErrorKind::InvalidArgument.because(format!(
            "option {name:?} must be a string (s), not {}",
            other.value_signature()
        ))),
    }
}

/// One of a few names; absent is `None`.
fn one_of<T, const N: usize>(
    options: &Options,
    option: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Result<Option<T>, Error>
where
    T: Copy,
{
    let given = match options.get(option).map(|value| &**value) {
        None => return Ok(None),
        Some(Variant::Str(text)) => all.into_iter().find(|one| name(*one) == text.as_str()),
        Some(_) => None,
    };
    let names = || all.map(name).join(", ");
    let wrong = || ErrorKind::InvalidArgument.because(format!("option {option:?} must be one of {}", names()));
    given.map(Some).ok_or_else(wrong)
}

/// Who is to use the container's exclusive CPUs.
pub(super) fn isolation(options: &Options) -> Result<Isolation, Error> {
    let given = one_of(options, "isolation", Isolation::ALL, Isolation::name)?;
    Ok(given.unwrap_or_default())
}

/// The object that is asked for.
pub(super) fn report(options: &Options) -> Result<ObjectForm, Error> {
    let profile = one_of(options, "profile", Profile::ALL, Profile::name)?.unwrap_or_default();
    let version = one_of(options, "api-version", ApiVersion::ALL, ApiVersion::name)?;
    let method = one_of(options, "pods-fingerprint", Method::ALL, Method::name)?;
    let refused = || {
        let versions: Vec<&str> = profile.versions().iter().map(|version| version.name()).collect();
        ErrorKind::InvalidArgument.because(format!(
            "option \"api-version\" must be {} with the profile {}",
            versions.join(" or "),
            profile.name()
        ))
    };
    Ok(ObjectForm {
        profile,
        version: profile.version(version).ok_or_else(refused)?,
        method: method.unwrap_or_default(),
    })
}

/// One request of EvaluatePlacement.
pub(super) fn evaluation(options: &Options) -> Result<EvaluateRequest, Error> {
    let (allocation, options) = from_dict(options, &[])?;
    Ok(EvaluateRequest { allocation, options })
}

/// The allocator's options of RegisterInstance, with a scheduler's choice.
pub(super) fn registration(options: &Options) -> Result<AllocationRequest, Error> {
    let (request, schedule): (AllocationRequest, Schedule) = from_dict(options, &REGISTER)?;
    Ok(AllocationRequest { schedule, ..request })
}

/// The options of RegisterInstance for the CPUs besides keeping tasks off them.
pub(super) fn quiet(options: &Options) -> Result<QuietRequest, Error> {
    let invalid = |text: String| ErrorKind::InvalidArgument.because(text);
    let names = || LatencyLevel::ALL.map(LatencyLevel::name).join(", ");
    let level = |name: String| {
        let level = LatencyLevel::parse(&name);
        level.ok_or_else(|| invalid(format!("option \"latency\" must be one of {}", names())))
    };
    let class = |name: String| {
        if is_name(&name) {
            Ok(name)
        } else {
            Err(invalid("option \"cache-class\" must be a cache class's name".into()))
        }
    };
    Ok(QuietRequest {
        latency: text(options, "latency")?
            .map(level)
            .transpose()?
            .unwrap_or(LatencyLevel::Default),
        cache_class: text(options, "cache-class")?.map(class).transpose()?,
    })
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
            report(&options(pairs.collect()))
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
        assert_eq!(registration(&given).unwrap(), expected);
        assert_eq!(registration(&Options::new()).unwrap(), AllocationRequest::default());
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
        assert_eq!(report(&Options::new()).unwrap().version, ApiVersion::V1Alpha1);
        let given = |value| options(vec![("api-version", value)]);
        assert_eq!(
            report(&given(Variant::from("v1alpha2"))).unwrap().version,
            ApiVersion::V1Alpha2
        );
        for wrong in [Variant::from("v1"), Variant::from(1u32)] {
            let refused = report(&given(wrong)).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "it was taken");
            let told = refused.text;
            assert!(told.contains("v1alpha1, v1alpha2"), "{told}");
        }
        let name = text(&options(vec![("node-name", Variant::from(1u32))]), "node-name");
        let refused = name.unwrap_err();
        assert!(refused.kind == ErrorKind::InvalidArgument && refused.text.contains("string"));
    }

    #[test]
    fn what_is_ordered_for_the_cpus_is_read_by_name() {
        let given = options(vec![
            ("latency", Variant::from("low")),
            ("cache-class", Variant::from("gold")),
        ]);
        let order = quiet(&given).unwrap();
        assert_eq!(
            (order.latency, order.cache_class.as_deref()),
            (LatencyLevel::Low, Some("gold"))
        );
        assert!(registration(&given).is_ok());
        for (name, value, says) in [
            ("latency", Variant::from("fast"), "default, low, polling"),
            ("latency", Variant::from(20u32), "string (s), not u"),
            ("cache-class", Variant::from("../gold"), "name"),
        ] {
            let refusal = quiet(&options(vec![(name, value)])).unwrap_err();
            assert!(refusal.text.contains(says), "{refusal}");
        }
    }
}
