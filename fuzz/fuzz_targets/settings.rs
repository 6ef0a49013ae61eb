//! steliad's own configuration. NUL separates a file from one that is laid over it.
#![no_main]

use std::path::Path;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use stelia_settings::{CacheLimits, Fragment, Settings, SettingsError};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    let (first, second) = text.split_once('\0').unwrap_or((text, ""));
    let parse = |text: &str| Fragment::parse(text, Path::new("/etc/stelia/steliad.toml"));
    let (one, two) = match (parse(first), parse(second)) {
        (Ok(one), Ok(two)) => (one, two),
        (
            Err(
                error @ (SettingsError::Unknown { .. }
                | SettingsError::UnknownOfRule { .. }
                | SettingsError::UnknownOfClass { .. }
                | SettingsError::Rule { .. }),
            ),
            _,
        ) => return fits(&error),
        _ => return,
    };
    same(&one.clone().merge(Fragment::default()), &one, "nothing laid over it");
    same(&Fragment::default().merge(one.clone()), &one, "laid over nothing");
    same(&one.clone().merge(one.clone()), &one, "laid over itself");
    let loaded = match one.merge(two).check() {
        Ok(loaded) => loaded,
        Err(error) => return fits(&error),
    };
    check(&loaded.settings);
    for key in loaded.origins.keys() {
        assert!(text.contains(key) || text.contains('\\'), "{key}");
    }
    // What is printed is a file that gives the same.
    let printed = loaded.print();
    let again = parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    same(&again.check().unwrap().settings, &loaded.settings, &printed);
});

fn check(settings: &Settings) {
    assert!(settings.kubelet_root.is_absolute() || settings.kubelet_root.as_os_str() == "auto");
    assert!((1..=1024).contains(&settings.policies.float_min_cpus));
    assert!((Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&settings.audit_interval));
    assert!((1..=10_000).contains(&settings.quiet.latency_low_us));
    for (name, limits) in &settings.quiet.cache_classes {
        assert!(
            !name.is_empty() && !name.contains('/') && *limits != CacheLimits::default(),
            "{name}"
        );
    }
    // As the kernel prints it, or every audit would find it changed.
    let max = &settings.policies.float_cpu_max;
    let canonical = |number: &str| number.parse::<u64>().is_ok_and(|value| value.to_string() == number);
    let pair = max
        .split_once(' ')
        .is_some_and(|(quota, period)| canonical(quota) && canonical(period));
    assert!(max == "max" || pair, "{max}");
}
