//! kubelet's flags, from wherever the program it runs in keeps them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stelia_cpus::text::excerpt;

use super::{Host, Process};
use crate::HostProcess;
use crate::config::{ConfigError, text, values};

/// k3s's own configuration, and the folder of its drop-ins.
const K3S: &str = "etc/rancher/k3s/config.yaml";
/// k3s's default data directory.
const K3S_DATA: &str = "/var/lib/rancher/k3s";
/// The file that MicroShift writes for its kubelet (`pkg/node/kubelet.go`).
const MICROSHIFT: &str = "/var/lib/microshift/resources/kubelet/config/config.yaml";
/// Where kubelite reads kubelet's flags by default (`cmd/kubelite/app/options`).
const KUBELITE: &str = "/var/snap/microk8s/current/args/kubelet";

/// The command line of this kubelet as if it were a program of its own, with a program's name first. `root` is `/`.
///
/// # Errors
/// A file does not exist or does not parse, or the place of the flags is not known.
pub(crate) fn argv(process: &Process, proc: &Path, root: &Path) -> Result<Vec<String>, ConfigError> {
    let own = own(process, proc)?;
    match process.host {
        Host::Kubelet => Ok(own),
        Host::K3s => k3s(root),
        Host::Kubelite => kubelite(&own, root),
        Host::MicroShift => Ok(vec![process.name.clone(), format!("--config={MICROSHIFT}")]),
        // A program that answers as kubelet and has kubelet's files on its command line is taken for one.
        Host::Unknown => {
            let is_kubelets = |word: &String| word.starts_with("--config") || word.starts_with("--kubeconfig");
            if own.iter().any(is_kubelets) {
                return Ok(own);
            }
            Err(ConfigError::Unknown {
                pid: process.pid,
                name: excerpt::name(&process.name),
            })
        }
    }
}

/// Its number may be another process's by now, which is not believed.
fn own(process: &Process, proc: &Path) -> Result<Vec<String>, ConfigError> {
    let kubelet = HostProcess::open(proc, process.pid).ok_or(ConfigError::NotRunning)?;
    let cmdline = proc.join(process.pid.to_string()).join("cmdline");
    kubelet.arguments().map_err(ConfigError::of_process(&cmdline))
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The values of a key of k3s's configuration: one, or a list. `None`: it is a map, or has one.
fn words(value: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| match value {
        Value::Array(_) | Value::Object(_) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(several) => several.iter().map(text).collect(),
        one => Some(vec![text(one)?]),
    }
}

/// `config.yaml`, then `config.yaml.d/*.yaml` by name. k3s overwrites its own command line to hide a token that may be
/// on it (`gspt.SetProcTitle`): settings that are only there are not known here.
fn k3s(root: &Path) -> Result<Vec<String>, ConfigError> {
    let mut files = vec![root.join(K3S)];
    let folder = root.join(format!("{K3S}.d"));
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let mut drop_ins: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_yaml).collect();
    drop_ins.sort();
    files.extend(drop_ins);
    let (mut args, mut data, mut name) = (Vec::new(), PathBuf::from(K3S_DATA), None);
    for path in files {
        let text = match text(&path) {
            Err(ConfigError::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => continue,
            read => read?,
        };
        let file = values(&text, &path.display().to_string())?;
        // A key with a + at its end adds to the earlier values.
        let given = |key: &str| {
            let words = file.get(key).map(|value| {
                words(value).ok_or_else(|| ConfigError::Malformed {
                    place: path.display().to_string(),
                    cause: format!("{key} is neither a text nor a list of texts"),
                })
            });
            words.transpose()
        };
        if let Some(given) = given("kubelet-arg")? {
            args = given;
        }
        args.extend(given("kubelet-arg+")?.unwrap_or_default());
        let text = |key: &str| file.get(key).and_then(Value::as_str);
        data = text("data-dir").map_or(data, PathBuf::from);
        name = text("node-name").map(str::to_owned).or(name);
    }
    // Before 1.32 k3s had no such directory and passed everything as flags.
    let drop_ins = data.join("agent/etc/kubelet.conf.d");
    let has_folder = below(root, &drop_ins).is_dir();
    let mut argv = vec!["k3s".to_owned()];
    argv.extend(has_folder.then(|| format!("--config-dir={}", drop_ins.display())));
    argv.extend(name.map(|name| format!("--hostname-override={name}")));
    let kept = if has_folder {
        without_copied(&args)
    } else {
        args.iter().collect()
    };
    argv.extend(kept.into_iter().map(|word| passed_on(word)));
    Ok(argv)
}

/// What k3s passes on of `kubelet-arg` where it copies files into its directory (`extractConfigArgs` in pkg/daemons/agent). It takes the
/// element after a name without `=` for the value of that name, and drops it, even if the name is kept.
fn without_copied(args: &[String]) -> Vec<&String> {
    let mut rest = args.iter();
    let mut kept = Vec::new();
    while let Some(word) = rest.next() {
        let flag = word.strip_prefix("--").unwrap_or(word);
        let name = flag.split_once('=').map(|(name, _)| name);
        if name.is_none() {
            rest.next();
        }
        if !matches!(name.unwrap_or(flag), "config" | "config-dir") {
            kept.push(word);
        }
    }
    kept
}

/// A value of `kubelet-arg` as the flag that k3s makes of it (`GetArgs` in pkg/util/args.go): without a value it is a switch, and `+` or
/// `-` after the name adds to an earlier value.
fn passed_on(word: &str) -> String {
    let (name, value) = word.trim_start_matches('-').split_once('=').unwrap_or((word, "true"));
    let name = name.trim_start_matches('-').trim_end_matches(['+', '-']);
    format!("--{name}={value}")
}

/// The file of flags as kubelite reads it: lines without quotes, blanks between flags, `$NAME` and `${NAME}` replaced.
fn kubelite(own: &[String], root: &Path) -> Result<Vec<String>, ConfigError> {
    let given = own.iter().find_map(|word| word.strip_prefix("--kubelet-args-file="));
    let file = Path::new(given.unwrap_or(KUBELITE));
    let text = text(&below(root, file))?;
    // …/args/kubelet is in the data of the snap's revision, beside which is the directory common to all revisions.
    let data = file.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let common = data.parent().unwrap_or(data).join("common");
    let known = [("SNAP_DATA", data), ("SNAP_COMMON", &common)];
    let mut argv = vec!["kubelite".to_owned()];
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    for word in lines.flat_map(str::split_whitespace) {
        let mut word = word.replace(['"', '\''], "");
        for (name, value) in &known {
            word = word.replace(&format!("${{{name}}}"), &value.display().to_string());
        }
        argv.push(word);
    }
    Ok(argv)
}
