//! What the arguments of the Manager's calls stand for.

use std::path::Path;

use stelia_api::{Error, ErrorKind};
use stelia_kubelet::PodUid;
use stelia_settings::{AdoptRule, Fragment};

use super::caller::Caller;
use super::manager::Options;
use super::options;
use crate::engine::{Handle, RebindRequest, ResizeRequest};

/// The longest configuration that a caller may give.
const MAX_CONFIG_BYTES: usize = 64 << 10;

/// The rules of adoption of a configuration file's text; its other settings must be valid too.
pub(super) fn adoption_rules(config: &str) -> Result<Vec<AdoptRule>, Error> {
    let refused = |text: &str| ErrorKind::InvalidArgument.because(text);
    if config.len() > MAX_CONFIG_BYTES {
        return Err(refused("the configuration is longer than 64 KiB"));
    }
    let loaded = Fragment::parse(config, Path::new("config")).and_then(Fragment::check);
    let rules = loaded
        .map_err(|cause| refused(&cause.to_string()))?
        .settings
        .policies
        .adopt;
    if rules.is_empty() {
        return Err(refused("the configuration has no [[adopt]] rule"));
    }
    Ok(rules)
}

pub(super) fn rebind(scope: &str, deadline_s: u32, options: &Options) -> Result<RebindRequest, Error> {
    options::known(options, &["dry-run"])?;
    Ok(RebindRequest {
        scope: scope.to_owned(),
        deadline_s,
        dry_run: options::flag(options, "dry-run")?,
    })
}

pub(super) fn resize(pod_uid: &str, cpus: u32, options: &Options) -> Result<ResizeRequest, Error> {
    options::known(options, &["dry-run"])?;
    Ok(ResizeRequest {
        pod: PodUid::parse(pod_uid).map_err(ErrorKind::InvalidArgument.context("pod_uid"))?,
        cpus,
        dry_run: options::flag(options, "dry-run")?,
    })
}

pub(super) fn no_instance(pod: &str) -> Error {
    let shown: String = pod.chars().take(64).collect();
    ErrorKind::NoSuchInstance.because(format!("pod {shown:?} has no instance"))
}

/// The pod with an instance that a caller names, or its own.
pub(super) fn named(engine: &Handle, caller: &Caller, pod_uid: &str) -> Result<PodUid, Error> {
    if pod_uid.is_empty() {
        return caller
            .only
            .clone()
            .ok_or_else(|| ErrorKind::InvalidArgument.because("pod_uid is empty"));
    }
    let pod = PodUid::parse(pod_uid).map_err(ErrorKind::InvalidArgument.context("pod_uid"))?;
    // What a caller may not see answers as what does not exist.
    if caller.sees(&pod) && engine.view().instances.contains_key(&pod) {
        Ok(pod)
    } else {
        Err(no_instance(pod_uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_rules_or_with_a_mistake_is_refused() {
        let refused = |config: &str| adoption_rules(config).unwrap_err();
        for config in [
            "",
            "audit-interval-s = 5",
            "[[adopt]]\nuse = \"kvm\"",
            "[[adopt]",
            &" ".repeat(MAX_CONFIG_BYTES + 1),
        ] {
            assert_eq!(refused(config).kind, ErrorKind::InvalidArgument, "{config:.20}");
        }
        assert!(
            refused("\n[[adopt]]\nname = \"a\"\nuse = \"kvm\"")
                .text
                .contains("line 4")
        );
        let rules = adoption_rules("[[adopt]]\nuse = \"kubevirt\"\n[[adopt]]\nuse = \"qemu\"").unwrap();
        assert_eq!(rules.len(), 2);
    }
}
