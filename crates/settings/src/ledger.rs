//! How the ledger is kept of who ran on the CPUs of VMs.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The settings of that.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LedgerSettings {
    /// Whether it is kept.
    pub kept: bool,
    /// How many bytes its files have at most.
    pub bytes: u64,
    /// How long and how often tasks on all VMs' CPUs are traced; `None`: never.
    pub sample: Option<Sample>,
}

impl Default for LedgerSettings {
    fn default() -> Self {
        Self {
            kept: true,
            bytes: 64 * MEBI,
            sample: None,
        }
    }
}

/// A time out of each hour or day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Sample {
    /// Seconds, 1 to 600.
    pub seconds: u32,
    pub every: Every,
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Every {
    Hour,
    Day,
}

impl Every {
    pub fn interval(self) -> Duration {
        match self {
            Self::Hour => Duration::from_secs(3600),
            Self::Day => Duration::from_secs(86_400),
        }
    }
}

impl Sample {
    pub fn lasts(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// As `10s/h`, `2m/d`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (time, every) = text.split_once('/')?;
        let every = match every {
            "h" => Every::Hour,
            "d" => Every::Day,
            _ => return None,
        };
        let seconds = match (time.strip_suffix('s'), time.strip_suffix('m')) {
            (Some(seconds), _) => digits(seconds)?,
            (_, Some(minutes)) => digits(minutes)?.checked_mul(60)?,
            _ => return None,
        };
        let seconds = u32::try_from(seconds).ok().filter(|seconds| LASTS.contains(seconds))?;
        Some(Self { seconds, every })
    }

    pub(crate) fn text(self) -> String {
        let every = match self.every {
            Every::Hour => "h",
            Every::Day => "d",
        };
        format!("{}s/{every}", self.seconds)
    }
}

/// How long a sample takes, in seconds.
const LASTS: RangeInclusive<u32> = 1..=600;

const MEBI: u64 = 1 << 20;

/// Size of the ring, in MiB: less does not hold a day of a large node, and more cannot be read within a second.
const MEBIBYTES: RangeInclusive<u64> = 4..=16 << 10;

/// Bytes of `64M`, `2G`.
pub(crate) fn size(text: &str) -> Option<u64> {
    let mebibytes = match (text.strip_suffix('M'), text.strip_suffix('G')) {
        (Some(number), _) => digits(number)?,
        (_, Some(number)) => digits(number)?.checked_mul(1 << 10)?,
        _ => return None,
    };
    MEBIBYTES.contains(&mebibytes).then_some(mebibytes * MEBI)
}

pub(crate) fn size_text(bytes: u64) -> String {
    match bytes / MEBI {
        mebibytes if mebibytes % 1024 == 0 => format!("{}G", mebibytes >> 10),
        mebibytes => format!("{mebibytes}M"),
    }
}

/// A number of digits alone: `parse` would take a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_within_its_bounds_and_read_back_as_it_was() {
        for (text, bytes) in [("4M", 4 << 20), ("64M", 64 << 20), ("1G", 1 << 30), ("16G", 16 << 30)] {
            assert_eq!(size(text), Some(bytes));
            assert_eq!(size_text(bytes), text);
        }
        assert_eq!(size("2048M").map(size_text).as_deref(), Some("2G"));
        for wrong in [
            "",
            "M",
            "3M",
            "17G",
            "16385M",
            "64",
            "64K",
            "+64M",
            "-1G",
            "6 4M",
            "99999999999999999999G",
        ] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_sample_is_a_time_out_of_an_hour_or_a_day() {
        let sample = Sample::parse("10s/h").unwrap();
        assert_eq!(
            (sample.lasts(), sample.every.interval()),
            (Duration::from_secs(10), Duration::from_secs(3600))
        );
        assert_eq!(Sample::parse("2m/d").map(Sample::text).as_deref(), Some("120s/d"));
        assert_eq!(Sample::parse("120s/d"), Sample::parse("2m/d"));
        for wrong in [
            "",
            "off",
            "10s",
            "10/h",
            "0s/h",
            "601s/h",
            "11m/d",
            "10s/m",
            "s/h",
            "+1s/h",
            "99999999999999999999m/h",
        ] {
            assert_eq!(Sample::parse(wrong), None, "{wrong}");
        }
    }
}
