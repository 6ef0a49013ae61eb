//! What may be asked of the ledger. Times are always UTC.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use stelia_ledger::day::{DAY_US, Month};
use stelia_ledger::ring::key;

use crate::shared::daemon::{Failure, VmPattern, vms};
use crate::shared::output::now;

/// The account of one VM or of all; or `verify`, `key`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LedgerOptions {
    /// Show only this VM, which may have ended, given as namespace/name, name or UID; with a pattern with *, ?
    /// or [a-z], show one line for each VM that matches. Default: all
    #[arg(value_name = "VM", add = ArgValueCandidates::new(vms))]
    pub(super) vm: Option<VmPattern>,
    /// Start of the period (UTC): 2026-10-01, "2026-10-01 12:30", 2026-10, today, yesterday, month (the first day of this month) or
    /// -7d. Default: the beginning of the ledger files
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, value_parser = time)]
    since: Option<u64>,
    /// End of the period (UTC), in the forms of --since. A day or a month means its first instant. Default: now
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, value_parser = time)]
    until: Option<u64>,
    /// Show this month (UTC), such as 2026-10
    #[arg(long, value_name = "MONTH", conflicts_with_all = ["since", "until"])]
    month: Option<Month>,
    /// Write a report on one VM to standard output: a self-contained HTML page that prints well. Without --since, --until or --month, it
    /// covers this month
    #[arg(long, requires = "vm")]
    pub(crate) html: bool,
    /// Count for this long, such as 60s, which tasks and interrupts run on the VM's CPUs, and print them
    #[arg(long, value_name = "TIME", requires = "vm", value_parser = humantime::parse_duration,
          conflicts_with_all = ["since", "until", "month", "html", "directory"])]
    pub(super) watch: Option<Duration>,
    /// Read copied ledger files in this directory. Does not need the daemon
    #[arg(long, value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
    #[command(subcommand)]
    pub(super) about: Option<About>,
}

/// What is asked of the ledger itself.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(super) enum About {
    /// Verify that no line of the ledger was modified after it was written
    ///
    /// Checks the chain of hashes over all lines and the signature of each day, and prints up to which entry a key or an expected entry
    /// verifies the ledger. The exit code is 1 if there is a fault, and with --key or --expect also if these verify no entry or not every
    /// day that has ended. Cannot show what root changed before it was written.
    Verify {
        /// Verify copied ledger files in this directory. Does not need the daemon
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
        /// The public key that must have signed, as `ledger key` printed it on the node. May be repeated. Without it, the keys named in
        /// the copy are used, which prove nothing
        #[arg(long, value_name = "KEY", requires = "directory", value_parser = public_key)]
        key: Vec<String>,
        /// An entry that is known from a report, a metric or a signal. It must exist and have this hash. Without it, missing entries at the
        /// end go unnoticed
        #[arg(long, value_name = "NUMBER:HASH", requires = "directory", value_parser = entry)]
        expect: Option<(u64, String)>,
    },
    /// Print the public key with which this node signs, in base64
    Key,
}

impl LedgerOptions {
    /// From when and until when; 0: everything there is, now.
    ///
    /// # Errors
    /// It begins in the future, or ends before it begins.
    pub(super) fn period(&self, now: u64) -> Result<(u64, u64), Failure> {
        let is_report_alone = self.html && self.since.or(self.until).is_none();
        let month = self.month.or(is_report_alone.then(|| Month::of(now)));
        let asked = (self.since.unwrap_or(0), self.until.unwrap_or(now));
        let (since, until) = month.map_or(asked, Month::period);
        if since > now {
            return Err(Failure::Usage("--since is in the future".to_owned()));
        }
        if since >= until {
            return Err(Failure::Usage("--since is not before --until".to_owned()));
        }
        Ok((since, if until >= now { 0 } else { until }))
    }
}

fn time(text: &str) -> Result<u64, &'static str> {
    at(text, now())
        .ok_or("expected a time in UTC: 2026-10-01, \"2026-10-01 12:30\", 2026-10, today, yesterday, month or -7d")
}

/// Microseconds since the epoch; a month and a day are their beginning. A date may have a time of day, as in RFC 3339, of which parts of a
/// second are left out.
fn at(text: &str, now: u64) -> Option<u64> {
    let (today, text) = (now - now % DAY_US, text.trim());
    let back = text.strip_prefix('-').map(humantime::parse_duration);
    Some(match (text, back, Month::parse(text)) {
        ("now", ..) => now,
        ("today", ..) => today,
        ("yesterday", ..) => today.checked_sub(DAY_US)?,
        ("month", ..) => Month::of(now).begins(),
        (_, Some(back), _) => now.checked_sub(back.ok()?.as_micros().try_into().ok()?)?,
        (_, None, Some(month)) => month.begins(),
        (text, None, None) => {
            let text = text.trim_end_matches("UTC").trim_end_matches(['Z', 'z']).trim_end();
            let missing = match text.len() {
                10 => " 00:00:00",
                16 => ":00",
                _ => "",
            };
            let time = humantime::parse_rfc3339_weak(&format!("{}{missing}", text.replace('t', "T"))).ok()?;
            time.duration_since(UNIX_EPOCH).ok()?.as_secs().checked_mul(1_000_000)?
        }
    })
}

fn public_key(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    let known = key::is_public(text).then(|| text.to_owned());
    known.ok_or("expected a public key as ledger key prints it, 44 characters that end with =")
}

/// `40112:8f3a…`.
fn entry(text: &str) -> Result<(u64, String), &'static str> {
    let entry = text.split_once(':').and_then(|(number, hash)| {
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some((number.parse().ok()?, hash.to_ascii_lowercase())).filter(|_| is_hash)
    });
    entry.ok_or("expected NUMBER:HASH, the hash as 64 hexadecimal digits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::output::time;

    /// 2026-10-14T05:06:07Z.
    const NOW: u64 = 1_791_954_367_000_000;

    fn read(text: &str) -> String {
        at(text, NOW).map_or_else(|| "refused".to_owned(), |at| time(at).replace(".000000Z", ""))
    }

    #[test]
    fn the_forms_of_journalctl_and_a_month_are_understood_in_utc() {
        for (text, expected) in [
            ("now", "2026-10-14T05:06:07"),
            ("today", "2026-10-14T00:00:00"),
            ("yesterday", "2026-10-13T00:00:00"),
            ("month", "2026-10-01T00:00:00"),
            ("-7d", "2026-10-07T05:06:07"),
            ("-1h30min", "2026-10-14T03:36:07"),
            ("2026-10", "2026-10-01T00:00:00"),
            ("2024-02-29", "2024-02-29T00:00:00"),
            ("2026-10-01 12:30", "2026-10-01T12:30:00"),
            ("2026-10-01T12:30:15Z", "2026-10-01T12:30:15"),
            ("2026-10-01 12:30:15 UTC", "2026-10-01T12:30:15"),
            ("2026-10-01T12:30:15.25Z", "2026-10-01T12:30:15"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "-",
            "noon",
            "7d",
            "-7q",
            "@1790000000",
            "7d ago",
            "2026-13",
            "2026-02-29",
            "2026-10-00",
            "1969-12-31",
            "2026-10-01 24:00",
            "2026-10-01 12",
            "2026-10-01 12:30 CET",
            "2026-10-01T12:30+2",
            "20261001",
            "-99999999999999999999y",
            "-18446744073709551615y",
            "2026-10-0é",
            "1970-01-01T00:00:00+01:00",
        ] {
            assert_eq!(read(text), "refused", "{text}");
        }
    }

    #[test]
    fn what_is_expected_is_a_number_and_a_hash() {
        let hash = "8F3A".repeat(16);
        assert_eq!(entry(&format!("7:{hash}")), Ok((7, hash.to_lowercase())));
        let wrong = [format!("x:{hash}"), format!("7:{}", "g".repeat(64))];
        for text in ["", "7", "7:8f3a"].into_iter().chain(wrong.iter().map(String::as_str)) {
            assert!(entry(text).is_err(), "{text}");
        }
    }
}
