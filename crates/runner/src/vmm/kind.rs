//! Which virtual machine monitor a program is.

use std::ffi::OsStr;
use std::path::Path;

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VmmKind {
    Qemu,
    CloudHypervisor,
    Firecracker,
}

impl VmmKind {
    /// For messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            VmmKind::Qemu => "QEMU",
            VmmKind::CloudHypervisor => "Cloud Hypervisor",
            VmmKind::Firecracker => "Firecracker",
        }
    }

    /// Known by the names of the files that their releases have (`cloud-hypervisor-static`, `firecracker-v1.13.1-x86_64`), also
    /// as the kernel cuts them after 15 bytes.
    pub(crate) fn of_program(program: &OsStr) -> Option<VmmKind> {
        let name = Path::new(program).file_name()?.to_str()?;
        if name.starts_with("cloud-hyperviso") {
            Some(VmmKind::CloudHypervisor)
        } else if name.starts_with("firecracker") {
            Some(VmmKind::Firecracker)
        } else if name.starts_with("qemu") {
            Some(VmmKind::Qemu)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("cloud-hypervisor", Some(VmmKind::CloudHypervisor))]
    #[case("/usr/bin/cloud-hypervisor-static", Some(VmmKind::CloudHypervisor))]
    #[case("cloud-hyperviso", Some(VmmKind::CloudHypervisor))]
    #[case("./firecracker-v1.13.1-x86_64", Some(VmmKind::Firecracker))]
    #[case("/usr/bin/qemu-system-x86_64", Some(VmmKind::Qemu))]
    #[case("/firecracker/run.sh", None)]
    #[case("", None)]
    fn a_program_is_known_by_its_files_name(#[case] program: &str, #[case] expected: Option<VmmKind>) {
        assert_eq!(VmmKind::of_program(OsStr::new(program)), expected);
    }
}
