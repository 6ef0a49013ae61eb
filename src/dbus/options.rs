//! The `a{sv}` options of calls, by name and type.

use std::os::fd::{AsFd, OwnedFd};

use stelia_allocator::evaluate::{Request, ScoringStrategy};
use stelia_allocator::{
    CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos, Schedule, Wish,
};
use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;
use stelia_node_report::ApiVersion;
use zbus::Variant;

use super::manager::Options;

/// RegisterInstance's, beside those of [`WISH`].
pub(super) const REGISTER: [&str; 2] = ["anchor", "origin-cgroup"];

/// What is asked of steliad's own allocator: of RegisterInstance, and of each request of EvaluatePlacement.
pub(super) const WISH: [&str; 8] = [
    "cpus",
    "qos",
    "cpu-bind-policy",
    "required-cpu-bind-policy",
    "cpu-limit",
    "cpu-exclusive-policy",
    "numa-allocate-strategy",
    "numa-topology-alignment-policy",
];

/// What a scheduler chose, of RegisterInstance alone: whoever asks before has no choice yet.
pub(super) const SCHEDULE: [&str; 2] = ["scheduled-cpuset", "scheduled-numa-nodes"];

/// Those of EvaluatePlacement's requests beside them.
const EVALUATE: [&str; 2] = ["kubernetes-class", "scoring-strategy"];

/// NodeTopology's.
pub(super) const NODE_TOPOLOGY: [&str; 2] = ["api-version", "node-name"];

/// Refuse an option that the call does not have.
pub(super) fn known(options: &Options, known: &[&str]) -> Result<(), Error> {
    match options.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => {
            let shown: String = unknown.chars().take(64).collect();
            Err(ErrorKind::InvalidArgument.because(format!("option {shown:?} is not known")))
        }
        None => Ok(()),
    }
}

/// A boolean; absent is false.
pub(super) fn flag(options: &Options, name: &str) -> Result<bool, Error> {
    match options.get(name).map(|value| &**value) {
        None => Ok(false),
        Some(Variant::Bool(yes)) => Ok(*yes),
        Some(_) => Err(ErrorKind::InvalidArgument.because(format!("option {name:?} is no boolean"))),
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

fn number(options: &Options, name: &str) -> Result<Option<u32>, Error> {
    match options.get(name).map(|value| &**value) {
        None => Ok(None),
        Some(Variant::U32(number)) => Ok(Some(*number)),
        Some(other) => Err(ErrorKind::InvalidArgument.because(format!(
            "option {name:?} must be a number (u), not {}",
            other.value_signature()
        ))),
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

/// The version of the object that is asked for.
pub(super) fn api_version(options: &Options) -> Result<ApiVersion, Error> {
    let names = || ApiVersion::ALL.map(ApiVersion::name).join(", ");
    Ok(named(options, "api-version", ApiVersion::parse, names)?.unwrap_or_default())
}

/// One of a list of names.
fn named<T>(
    options: &Options,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
    allowed: impl Fn() -> String,
) -> Result<Option<T>, Error> {
    match options.get(name).map(|value| &**value) {
        None => Ok(None),
        Some(Variant::Str(text)) if parse(text.as_str()).is_some() => Ok(parse(text.as_str())),
        Some(_) => Err(ErrorKind::InvalidArgument.because(format!("option {name:?} must be one of {}", allowed()))),
    }
}

/// What a scheduler asks about.
///
/// # Errors
/// `InvalidArgument`: an option's name, type or value.
pub(super) fn request(options: &Options) -> Result<Request, Error> {
    known(options, &[EVALUATE.as_slice(), &WISH].concat())?;
    let wish = wish(options)?;
    let classes = || QosClass::ALL.map(QosClass::name).join(", ");
    let strategies = || ScoringStrategy::ALL.map(ScoringStrategy::name).join(", ");
    Ok(Request {
        kubernetes_class: named(options, "kubernetes-class", QosClass::parse, classes)?,
        qos: wish.qos,
        cpus: wish.cpus,
        cpu_limit: wish.limit_milli,
        cpu_bind_policy: wish.bind,
        required_cpu_bind_policy: wish.required,
        cpu_exclusive_policy: wish.exclusive,
        numa_allocate_strategy: wish.strategy,
        numa_topology_alignment_policy: wish.alignment,
        scoring_strategy: named(options, "scoring-strategy", ScoringStrategy::parse, strategies)?.unwrap_or_default(),
    })
}

/// What is asked of steliad's own allocator.
///
/// # Errors
/// `InvalidArgument`: an option's type or value.
pub(super) fn wish(options: &Options) -> Result<Wish, Error> {
    macro_rules! one_of {
        ($name:literal, $type:ident) => {
            named(options, $name, $type::parse, || {
                $type::ALL.map($type::name).join(", ")
            })?
        };
    }
    Ok(Wish {
        cpus: number(options, "cpus")?,
        qos: one_of!("qos", Qos),
        bind: one_of!("cpu-bind-policy", CpuBindPolicy),
        required: one_of!("required-cpu-bind-policy", CpuBindPolicy),
        limit_milli: number(options, "cpu-limit")?,
        exclusive: one_of!("cpu-exclusive-policy", CpuExclusivePolicy),
        strategy: one_of!("numa-allocate-strategy", NumaAllocateStrategy),
        alignment: one_of!("numa-topology-alignment-policy", NumaTopologyAlignmentPolicy),
        schedule: Schedule {
            cpus: numbers(options, "scheduled-cpuset")?,
            nodes: numbers(options, "scheduled-numa-nodes")?.map(|nodes| nodes.iter().collect()),
        },
    })
}

/// A list such as `0-3,8`, with something in it.
fn numbers(options: &Options, name: &str) -> Result<Option<CpuSet>, Error> {
    let Some(text) = text(options, name)? else {
        return Ok(None);
    };
    let wrong = |cause: String| ErrorKind::InvalidArgument.because(format!("option {name:?}: {cause}"));
    let numbers: CpuSet = text.parse().map_err(|cause| wrong(format!("{cause}")))?;
    match numbers.is_empty() {
        true => Err(wrong("the list is empty".to_owned())),
        false => Ok(Some(numbers)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: Vec<(&str, Variant<'static>)>) -> Options {
        let own = |(name, value): (&str, Variant<'static>)| (name.to_owned(), value.try_into().unwrap());
        pairs.into_iter().map(own).collect()
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
        assert!(known(&given, &[WISH.as_slice(), &SCHEDULE].concat()).is_ok());
        assert!(
            known(&given, &WISH).is_err(),
            "a scheduler that asks has chosen nothing yet"
        );
        let expected = Wish {
            cpus: Some(4),
            qos: Some(Qos::Lsr),
            bind: Some(CpuBindPolicy::FullPcpus),
            required: Some(CpuBindPolicy::SpreadByPcpus),
            limit_milli: Some(2500),
            exclusive: Some(CpuExclusivePolicy::NumaNodeLevel),
            strategy: Some(NumaAllocateStrategy::DistributeEvenly),
            alignment: Some(NumaTopologyAlignmentPolicy::SingleNumaNode),
            schedule: Schedule {
                cpus: Some("0-1,6-7".parse().unwrap()),
                nodes: Some([0, 1].into()),
            },
        };
        assert_eq!(wish(&given).unwrap(), expected);
        assert_eq!(wish(&Options::new()).unwrap(), Wish::default());
    }

    #[test]
    fn a_wrong_type_or_value_is_named_with_what_is_allowed() {
        for (name, value, says) in [
            ("cpus", Variant::from("4"), "number"),
            ("cpu-limit", Variant::from(-1i32), "number"),
            ("qos", Variant::from("lse"), "LSE, LSR, LS, BE"),
            ("qos", Variant::from(1u32), "LSE, LSR, LS, BE"),
            ("cpu-bind-policy", Variant::from("Full"), "FullPCPUs"),
            ("scheduled-cpuset", Variant::from("0-3;"), "3;"),
            ("scheduled-cpuset", Variant::from(""), "empty"),
            ("scheduled-numa-nodes", Variant::from(0u32), "string"),
        ] {
            let refused = wish(&options(vec![(name, value)])).unwrap_err();
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
        let expected = Request {
            kubernetes_class: Some(QosClass::Burstable),
            qos: Some(Qos::Ls),
            cpu_limit: Some(2500),
            cpu_bind_policy: Some(CpuBindPolicy::ConstrainedBurst),
            scoring_strategy: ScoringStrategy::BalancedAllocation,
            ..Request::default()
        };
        assert_eq!(request(&given).unwrap(), expected);
        assert_eq!(request(&Options::new()).unwrap(), Request::default());
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
            let refused = request(&options(vec![(name, value)])).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{name} was taken");
            let text = refused.text;
            assert!(text.contains(name) && text.contains(says), "{text}");
        }
    }

    #[test]
    fn the_node_topology_is_of_a_version_that_exists() {
        assert_eq!(api_version(&Options::new()).unwrap(), ApiVersion::V1Alpha1);
        let given = |value| options(vec![("api-version", value)]);
        assert_eq!(
            api_version(&given(Variant::from("v1alpha2"))).unwrap(),
            ApiVersion::V1Alpha2
        );
        for wrong in [Variant::from("v1"), Variant::from(1u32)] {
            let refused = api_version(&given(wrong)).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "it was taken");
            let told = refused.text;
            assert!(told.contains("v1alpha1, v1alpha2"), "{told}");
        }
        let name = text(&options(vec![("node-name", Variant::from(1u32))]), "node-name");
        let refused = name.unwrap_err();
        assert!(refused.kind == ErrorKind::InvalidArgument && refused.text.contains("string"));
    }
}
