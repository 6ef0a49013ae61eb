//! What is asked of steliad's own allocator, in words of a command line: options of RegisterInstance, sent only when given.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use stelia_api::client::Dict;
use stelia_cpus::CpuSet;
use zbus::Variant;

use crate::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos, Schedule};

/// Options of a node whose `cpu-source` is `steliad`; with kubelet's the daemon refuses them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Options of a node whose cpu-source is steliad")]
pub struct AllocationOptions {
    /// QoS class. LSE: CPUs of its own; LSR: the same, and BE may run there; LS: the shared pool; BE: the BE shared pool
    #[arg(long, value_name = "CLASS", value_parser = names(Qos::ALL.map(Qos::name), Qos::parse))]
    pub qos: Option<Qos>,
    /// How many CPUs (LSE, LSR): at most the container's CPU limit, which it is when not given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// How the CPUs lie on cores; ConstrainedBurst (LS): the shared pool of one NUMA node
    #[arg(long, value_name = "POLICY", value_parser = names(CpuBindPolicy::ALL.map(CpuBindPolicy::name), CpuBindPolicy::parse))]
    pub cpu_bind_policy: Option<CpuBindPolicy>,
    /// The same, or no CPUs at all (LSE, LSR)
    #[arg(long, value_name = "POLICY", value_parser = names(CpuBindPolicy::ALL.map(CpuBindPolicy::name), CpuBindPolicy::parse))]
    pub required_cpu_bind_policy: Option<CpuBindPolicy>,
    /// The pod's CPU limit, for ConstrainedBurst (2, 2.5 or 2500m)
    #[arg(long, value_name = "QUANTITY", value_parser = thousandths)]
    pub cpu_limit: Option<u32>,
    /// Whose company is avoided, if that can be: that of instances with the same policy, on a core or on a NUMA node
    #[arg(long, value_name = "POLICY", value_parser = names(CpuExclusivePolicy::ALL.map(CpuExclusivePolicy::name), CpuExclusivePolicy::parse))]
    pub cpu_exclusive_policy: Option<CpuExclusivePolicy>,
    /// Which NUMA nodes the CPUs come from
    #[arg(long, value_name = "STRATEGY", value_parser = names(NumaAllocateStrategy::ALL.map(NumaAllocateStrategy::name), NumaAllocateStrategy::parse))]
    pub numa_allocate_strategy: Option<NumaAllocateStrategy>,
    /// How few NUMA nodes they must come from
    #[arg(long, value_name = "POLICY", value_parser = names(NumaTopologyAlignmentPolicy::ALL.map(NumaTopologyAlignmentPolicy::name), NumaTopologyAlignmentPolicy::parse))]
    pub numa_topology_alignment_policy: Option<NumaTopologyAlignmentPolicy>,
    /// What a scheduler chose: no option, but read from the pod's annotation.
    #[arg(skip)]
    pub schedule: Schedule,
}

impl AllocationOptions {
    /// Those that are given, as RegisterInstance takes them.
    pub fn to_dbus(&self) -> Dict<'static> {
        let numbers = [("cpus", self.cpus), ("cpu-limit", self.cpu_limit)];
        let texts = [
            ("qos", self.qos.map(Qos::name)),
            ("cpu-bind-policy", self.cpu_bind_policy.map(CpuBindPolicy::name)),
            (
                "required-cpu-bind-policy",
                self.required_cpu_bind_policy.map(CpuBindPolicy::name),
            ),
            (
                "cpu-exclusive-policy",
                self.cpu_exclusive_policy.map(CpuExclusivePolicy::name),
            ),
            (
                "numa-allocate-strategy",
                self.numa_allocate_strategy.map(NumaAllocateStrategy::name),
            ),
            (
                "numa-topology-alignment-policy",
                self.numa_topology_alignment_policy
                    .map(NumaTopologyAlignmentPolicy::name),
            ),
        ];
        let numbers = numbers
            .into_iter()
            .filter_map(|(name, value)| Some((name, Variant::from(value?))));
        let texts = texts
            .into_iter()
            .filter_map(|(name, value)| Some((name, Variant::from(value?))));
        let nodes = self.schedule.nodes.as_ref();
        let lists = [
            ("scheduled-cpuset", self.schedule.cpus.clone()),
            (
                "scheduled-numa-nodes",
                nodes.map(|nodes| nodes.iter().copied().collect()),
            ),
        ];
        let lists = lists
            .into_iter()
            .filter_map(|(name, list): (_, Option<CpuSet>)| Some((name, Variant::from(list?.to_string()))));
        numbers.chain(texts).chain(lists).collect()
    }
}

/// One of these names, by the allocator's own reading of it.
pub fn names<T: Clone + Send + Sync + 'static, const N: usize>(
    names: [&'static str; N],
    parse: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| parse(&name).ok_or("it is no such name"))
}

/// A quantity of CPUs as Kubernetes writes it, in thousandths of a CPU: `2`, `2.5`, `2500m`.
fn thousandths(text: &str) -> Result<u32, String> {
    let milli = match text.strip_suffix('m') {
        Some(number) => number_of(number),
        None => {
            let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
            let places = u32::try_from(fraction.len()).unwrap_or(u32::MAX);
            let scale = 3_u32.checked_sub(places).map(|zeros| 10_u32.pow(zeros));
            let fraction = number_of(fraction).zip(scale).map(|(number, scale)| number * scale);
            let whole = number_of(whole).and_then(|whole| whole.checked_mul(1000));
            whole
                .zip(fraction)
                .and_then(|(whole, fraction)| whole.checked_add(fraction))
        }
    };
    milli
        .filter(|milli| *milli > 0)
        .ok_or_else(|| "give CPUs or thousandths of one: 2, 2.5 or 2500m".to_owned())
}

/// Digits only: no sign.
fn number_of(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: AllocationOptions,
    }

    fn line(words: &[&str]) -> Result<AllocationOptions, clap::Error> {
        Line::try_parse_from([&["x"], words].concat()).map(|line| line.options)
    }

    /// As `name=value`, in order.
    fn sent(options: &AllocationOptions) -> Vec<String> {
        let mut sent: Vec<String> = options
            .to_dbus()
            .iter()
            .map(|(name, value)| match value {
                Variant::U32(number) => format!("{name}={number}"),
                Variant::Str(text) => format!("{name}={text}"),
                other => panic!("{name}: {other:?}"),
            })
            .collect();
        sent.sort();
        sent
    }

    #[test]
    fn what_is_not_given_is_not_sent() {
        assert_eq!(sent(&line(&[]).unwrap()), [""; 0]);
        assert_eq!(sent(&line(&["--qos=BE"]).unwrap()), ["qos=BE"]);
    }

    #[test]
    fn everything_is_sent_by_its_own_name() {
        let words = [
            "--qos=LSR",
            "--cpus=4",
            "--cpu-bind-policy=FullPCPUs",
            "--required-cpu-bind-policy=SpreadByPCPUs",
            "--cpu-limit=2.5",
            "--cpu-exclusive-policy=NUMANodeLevel",
            "--numa-allocate-strategy=DistributeEvenly",
            "--numa-topology-alignment-policy=SingleNUMANode",
        ];
        let expected = [
            "cpu-bind-policy=FullPCPUs",
            "cpu-exclusive-policy=NUMANodeLevel",
            "cpu-limit=2500",
            "cpus=4",
            "numa-allocate-strategy=DistributeEvenly",
            "numa-topology-alignment-policy=SingleNUMANode",
            "qos=LSR",
            "required-cpu-bind-policy=SpreadByPCPUs",
            "scheduled-cpuset=2-3,8",
            "scheduled-numa-nodes=0-1",
        ];
        let mut options = line(&words).unwrap();
        options.schedule = Schedule {
            cpus: Some("2-3,8".parse().unwrap()),
            nodes: Some([0, 1].into()),
        };
        assert_eq!(sent(&options), expected);
    }

    #[rstest]
    #[case("--qos=lse", "LSE, LSR, LS, BE")]
    #[case("--cpu-bind-policy=full-pcpus", "ConstrainedBurst")]
    #[case("--cpu-exclusive-policy=PCPU", "PCPULevel")]
    #[case("--numa-allocate-strategy=", "MostAllocated")]
    #[case("--numa-topology-alignment-policy=single-numa-node", "SingleNUMANode")]
    fn a_name_that_is_none_is_refused_with_those_that_are(#[case] word: &str, #[case] told: &str) {
        let text = line(&[word]).unwrap_err().to_string();
        assert!(text.contains(told), "{text}");
    }

    #[rstest]
    #[case("2", Some(2000))]
    #[case("2.5", Some(2500))]
    #[case("0.001", Some(1))]
    #[case("2500m", Some(2500))]
    #[case("4294967295m", Some(u32::MAX))]
    #[case("4294968", None)]
    #[case("4294967.296", None)]
    #[case("0", None)]
    #[case("0.0", None)]
    #[case("1.0005", None)]
    #[case("2.", None)]
    #[case(".5", None)]
    #[case("2.5m", None)]
    #[case("+2", None)]
    #[case("1.+5", None)]
    #[case("-1", None)]
    #[case("2Ki", None)]
    #[case("m", None)]
    #[case("", None)]
    fn a_limit_is_a_quantity_of_kubernetes(#[case] text: &str, #[case] milli: Option<u32>) {
        assert_eq!(thousandths(text).ok(), milli);
    }

    #[test]
    fn no_cpus_are_no_number_of_cpus() {
        assert!(line(&["--cpus=0"]).is_err());
        assert_eq!(line(&["--cpus=1"]).unwrap().cpus, Some(1));
    }
}
