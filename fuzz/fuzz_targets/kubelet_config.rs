//! kubelet's configuration: NUL separates the file, a drop-in, and the arguments of the command line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_kubelet::KubeletConfig;
use stelia_kubelet::config::{ConfigError, DropIn, File, Flags};
use steliad_fuzz::{fits, same};

/// A value that no error may quote: the file can hold credentials.
const SECRET: &str = "Zk9vQ7";

fuzz_target!(|text: &str| {
    let mut parts = text.split('\0');
    let file = parts.next().and_then(|text| taken(File::parse(text, "config.yaml")));
    let drop_in = parts.next().and_then(|text| taken(DropIn::parse(text, "10.conf")));
    let argv: Vec<String> = std::iter::once("kubelet").chain(parts).map(str::to_owned).collect();
    let flags = match Flags::parse(&argv) {
        Ok(flags) => flags,
        Err(error) => return fits(&error),
    };
    let drop_ins: Vec<DropIn> = drop_in.into_iter().collect();
    let read = |drop_ins: Vec<DropIn>| {
        KubeletConfig::new(file.clone(), drop_ins, flags.clone()).map(|config| KubeletConfig {
            warnings: Vec::new(),
            ..config
        })
    };
    let config = match read(drop_ins.clone()) {
        Ok(config) => config,
        Err(error) => {
            assert!(
                matches!(error, ConfigError::ReservedCpus(_) | ConfigError::Value { .. }),
                "{error}"
            );
            return fits(&error);
        }
    };
    // A drop-in given twice changes nothing, nor does an empty one.
    let twice = [drop_ins.clone(), drop_ins.clone()].concat();
    same(&read(twice).unwrap(), &config, "the drop-in twice");
    let empty = DropIn::parse(EMPTY, "20.conf").unwrap();
    if !drop_ins.is_empty() {
        same(
            &read([drop_ins, vec![empty]].concat()).unwrap(),
            &config,
            "with an empty one",
        );
    }
    // Flags given twice are the same flags, but for the list.
    let doubled: Vec<String> = argv.iter().chain(&argv[1..]).cloned().collect();
    let is_list = |argument: &String| argument.replace('_', "-").starts_with("--reserved-memory");
    if !argv.iter().any(|argument| argument == "--" || is_list(argument)) && complete(&argv) {
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

const EMPTY: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// What was parsed; an error must fit and quote no value.
fn taken<T>(parsed: Result<T, ConfigError>) -> Option<T> {
    let error = match parsed {
        Ok(parsed) => return Some(parsed),
        Err(error) => error,
    };
    fits(&error);
    match &error {
        // These name a kind, or a key.
        ConfigError::Kind { .. } | ConfigError::Twice { .. } => {}
        ConfigError::Value { what, .. } => assert!(!what.contains(SECRET), "{error}"),
        error => assert!(!error.to_string().contains(SECRET), "{error}"),
    }
    None
}

/// Whether no argument takes the next one as its value.
fn complete(argv: &[String]) -> bool {
    argv[1..].iter().all(|argument| argument.contains('='))
}
