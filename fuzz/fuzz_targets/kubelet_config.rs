//! kubelet's configuration: NUL separates the file, a drop-in, and the arguments of the command line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_kubelet::KubeletConfig;
use stelia_kubelet::config::{ConfigError, Flags, Fragment};
use steliad_fuzz::{fits, same};

/// A value that no error may quote: the file can hold credentials.
const SECRET: &str = "Zk9vQ7";

fuzz_target!(|text: &str| {
    let mut parts = text.split('\0');
    let mut files = Vec::new();
    for text in parts.by_ref().take(2) {
        match Fragment::parse(text, "config.yaml") {
            Ok(fragment) => files.push(fragment),
            Err(error) => {
                fits(&error);
                assert!(
                    matches!(error, ConfigError::Kind { .. }) || !error.to_string().contains(SECRET),
                    "{error}"
                );
            }
        }
    }
    let argv: Vec<String> = std::iter::once("kubelet").chain(parts).map(str::to_owned).collect();
    let flags = match Flags::parse(&argv) {
        Ok(flags) => flags,
        Err(error) => return fits(&error),
    };
    let config = match KubeletConfig::new(files.clone(), flags.clone()) {
        Ok(config) => config,
        Err(error) => {
            assert!(matches!(error, ConfigError::ReservedCpus(_)), "{error}");
            return fits(&error);
        }
    };
    // A source given twice changes nothing, nor does an empty one.
    let twice: Vec<Fragment> = files.iter().flat_map(|file| [file.clone(), file.clone()]).collect();
    same(
        &KubeletConfig::new(twice, flags.clone()).unwrap(),
        &config,
        "each file twice",
    );
    let empty = [Fragment::default()]
        .into_iter()
        .chain(files.clone())
        .chain([Fragment::default()]);
    same(
        &KubeletConfig::new(empty, flags.clone()).unwrap(),
        &config,
        "between two empty files",
    );
    // Flags given twice are the same flags.
    let doubled: Vec<String> = argv.iter().chain(&argv[1..]).cloned().collect();
    if !argv.iter().any(|argument| argument == "--") && complete(&argv) {
        same(&Flags::parse(&doubled).unwrap(), &flags, "each flag twice");
    }
    let on = config
        .cpu_manager_policy_options
        .keys()
        .filter(|name| config.cpu_option(name))
        .count();
    assert!(on <= config.cpu_manager_policy_options.len());
    assert!(!config.cpu_option("no such option\0"));
});

/// Whether no argument takes the next one as its value.
fn complete(argv: &[String]) -> bool {
    argv[1..].iter().all(|argument| argument.contains('='))
}
