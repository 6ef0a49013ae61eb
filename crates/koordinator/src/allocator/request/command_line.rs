//! A request as options of a command line.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos};

macro_rules! values {
    ($($type:ident),+) => {$(
        impl ValueEnum for $type {
            fn value_variants<'a>() -> &'a [Self] {
                &Self::ALL
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                Some(PossibleValue::new(self.name()))
            }
        }
    )+};
}

values!(
    Qos,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaTopologyAlignmentPolicy
);

/// Accepts these names and parses them by the type's own `parse`.
pub fn names<T: Clone + Send + Sync + 'static, const N: usize>(
    names: [&'static str; N],
    parse: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| parse(&name).ok_or("there is no such name"))
}

/// A quantity of CPUs as Kubernetes writes it, in thousandths of a CPU: `2`, `2.5`, `2500m`.
pub(super) fn thousandths(text: &str) -> Result<u32, String> {
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
    use stelia_api::dict::to_dict;
    use zbus::Variant;

    use super::*;
    use crate::allocator::{AllocationRequest, Schedule};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: AllocationRequest,
    }

    fn line(words: &[&str]) -> Result<AllocationRequest, clap::Error> {
        Line::try_parse_from([&["x"], words].concat()).map(|line| line.options)
    }

    /// As `name=value`, in order.
    fn sent(options: &AllocationRequest) -> Vec<String> {
        let mut dict = to_dict(options).unwrap();
        dict.extend(to_dict(&options.schedule).unwrap());
        let mut sent: Vec<String> = dict
            .iter()
            .map(|(name, value)| match &**value {
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
