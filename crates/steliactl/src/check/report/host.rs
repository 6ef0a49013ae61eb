//! The host of a report.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use stelia_kernel::locality::size;

use crate::check::doctor;
use crate::shared::kernel::host_name;
use crate::shared::output::{Render, TextStyle, counted, now, properties, time};

/// What is not known is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Host {
    hostname: String,
    time_us: u64,
    /// The distribution, as os-release(5) calls it.
    system: String,
    /// `/proc/sys/kernel/osrelease`.
    kernel: String,
    systemd: Option<u32>,
    processor: String,
    memory_bytes: Option<u64>,
    steliactl: String,
}

impl Host {
    /// Reads the files below `root`.
    pub(super) fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let os = ["etc/os-release", "usr/lib/os-release"].map(text);
        Self {
            hostname: host_name(&root.join("proc")),
            time_us: now(),
            system: os
                .iter()
                .find_map(|os| value(os, "PRETTY_NAME", '='))
                .unwrap_or_default(),
            kernel: text("proc/sys/kernel/osrelease").trim().to_owned(),
            systemd: doctor::systemd(root),
            processor: processor(&text("proc/cpuinfo")),
            memory_bytes: value(&text("proc/meminfo"), "MemTotal", ':').and_then(|kib| {
                let kib: u64 = kib.strip_suffix("kB")?.trim().parse().ok()?;
                kib.checked_mul(1024)
            }),
            steliactl: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl Render for Host {
    fn text(&self, style: TextStyle) -> String {
        let systemd = self.systemd.map(|version| version.to_string());
        let rows = [
            ("Host", self.hostname.clone()),
            ("Time", time(self.time_us)),
            ("System", self.system.clone()),
            ("Kernel", self.kernel.clone()),
            ("systemd", systemd.unwrap_or_default()),
            ("Processor", self.processor.clone()),
            ("Memory", self.memory_bytes.map(size).unwrap_or_default()),
            ("steliactl", self.steliactl.clone()),
        ];
        properties(rows, style)
    }
}

/// The model's name on x86. arm64's kernel knows the numbers of each core's designer and design alone: these, with how many CPUs have them.
fn processor(cpuinfo: &str) -> String {
    if let Some(name) = value(cpuinfo, "model name", ':') {
        return name;
    }
    let mut designs: BTreeMap<(String, String), usize> = BTreeMap::new();
    for cpu in cpuinfo.split("\n\n") {
        let number = |name| value(cpu, name, ':');
        if let Some(design) = number("CPU implementer").zip(number("CPU part")) {
            *designs.entry(design).or_default() += 1;
        }
    }
    let texts = designs.iter().map(|((implementer, part), cpus)| {
        format!(
            "implementer {implementer}, part {part} ({})",
            counted(*cpus as u64, "CPU")
        )
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// The value of the first line with this name, without quotes.
fn value(text: &str, name: &str, separator: char) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(separator));
    let (_, value) = lines.find(|(found, _)| found.trim() == name)?;
    Some(value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::folder;

    #[test]
    fn a_host_is_read_and_what_is_missing_is_empty() {
        assert_eq!(Host::read(Path::new("/nonexistent")).hostname, "");
        let root = folder(&[
            ("proc/sys/kernel/hostname", "gpu3\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13\"\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7763\n"),
            ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n"),
        ]);
        let host = Host::read(root.path());
        assert_eq!(
            (host.hostname.as_str(), host.system.as_str()),
            ("gpu3", "Debian GNU/Linux 13")
        );
        assert_eq!(
            (host.processor.as_str(), host.memory_bytes),
            ("AMD EPYC 7763", Some(1 << 20))
        );
        assert_eq!((host.kernel.as_str(), host.systemd), ("", None));
    }
    /// The lines of a DGX Spark, of two CPUs of one design and one of another (hwloc, nvidia-dgx-gb10).
    #[test]
    fn a_processor_without_a_name_is_the_designs_of_its_cpus() {
        let cpu = |number: u32, part: &str| {
            format!(
                "processor\t: {number}\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n\n"
            )
        };
        let text = [cpu(0, "0xd87"), cpu(5, "0xd85"), cpu(6, "0xd85")].concat();
        assert_eq!(
            processor(&text),
            "implementer 0x41, part 0xd85 (2 CPUs); implementer 0x41, part 0xd87 (1 CPU)"
        );
        assert_eq!(processor("processor\t: 0\n"), "");
    }
}
