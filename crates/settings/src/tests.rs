use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::adopt::RULE_KEYS;
use crate::settings::KEYS;
use crate::{
    AdoptPlacement, AdoptRule, Fragment, Isolation, Loaded, Pattern, ReadyMade, Settings, TreeChoice, files, load,
};

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn without_any_file_the_defaults_hold() {
    assert_eq!(load(tree(&[]).path()).unwrap(), Loaded::default());
}

#[test]
fn a_drop_in_wins_over_the_file_and_etc_hides_usr() {
    let dir = tree(&[
        ("etc/stelia/steliad.toml", "audit-interval-s = 5\nkubelet-root = \"/a\""),
        ("usr/lib/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 6"),
        ("etc/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 7"),
    ]);
    let settings = load(dir.path()).unwrap().settings;
    assert_eq!(settings.audit_interval, Duration::from_secs(7));
    assert_eq!(settings.kubelet_root, Path::new("/a"));
}

#[test]
fn an_unknown_key_is_an_error_with_file_and_line() {
    let dir = tree(&[("etc/stelia/steliad.toml", "\nkubelet-rot = \"/a\"")]);
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("steliad.toml") && error.contains("line 2") && error.contains("kubelet-rot"),
        "{error}"
    );
}

#[test]
fn a_value_of_the_wrong_type_says_what_is_expected_and_where() {
    for (line, says) in [
        (
            "placement = 1",
            "line 3: placement = 1: expected guest, full-pcpus, spread-by-pcpus or linear",
        ),
        ("float-min-cpus = -1", "line 3: float-min-cpus = -1: expected 1 to 1024"),
        (
            "audit-interval-s = \"5\"",
            "line 3: audit-interval-s = \"5\": expected 1 to 3600",
        ),
        ("[kubelet-root]\na = 1", "kubelet-root"),
    ] {
        let dir = tree(&[("etc/stelia/steliad.toml", &format!("\n\n{line}"))]);
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_value_that_a_later_file_replaces_may_be_anything() {
    let dir = tree(&[
        ("etc/stelia/steliad.toml", "placement = \"best\""),
        ("run/stelia/steliad.toml.d/50-x.toml", "placement = \"linear\""),
    ]);
    let loaded = load(dir.path()).unwrap();
    assert!(loaded.origins["placement"].ends_with("50-x.toml"));
}

#[test]
fn a_value_that_is_not_allowed_says_what_is_and_in_which_file() {
    for (line, says) in [
        ("placement = \"best\"", "linear"),
        ("float-policy = \"all\"", "numa"),
        ("partition = \"\"", "isolated"),
        ("float-cpu-max = \"10 1000\"", "period"),
        ("float-min-cpus = 0", "1 to 1024"),
        ("kubelet-root = \"x\"", "absolute"),
        ("runtime-state = \"/x\"", "absolute"),
        ("runtime-state = [\"/x\", \"y\"]", "absolute"),
        ("cpu-source = \"both\"", "steliad"),
        ("reserved-cpus = \"3-1\"", "CPU list"),
        ("cpu-bind-policy = \"ConstrainedBurst\"", "FullPCPUs or"),
        ("cpu-exclusive-policy = \"Default\"", "PCPULevel"),
        ("latency-allowed = \"high\"", "default, low or polling"),
        ("latency-low-us = 0", "1 to 10000"),
        ("cpu-governor = \"../on demand\"", "keep or the name of a governor"),
        ("cache-monitoring = \"on\"", "true or false"),
        ("ledger = \"yes\"", "true or false"),
        ("ledger-size = \"1M\"", "\"4M\" to \"16G\""),
        ("ledger-size = 64", "\"4M\" to \"16G\""),
        ("ledger-sample = \"10s\"", "off or 1 to 600 seconds"),
        ("publish = \"true\"", "off, nrt, koordinator or stelia"),
        ("device-plugin-vms = 0", "auto or 1 to 1024"),
        ("device-plugin-vms = 1025", "auto or 1 to 1024"),
        ("device-plugin-vms = \"8\"", "auto or 1 to 1024"),
        ("device-plugin-device-nodes = \"/dev/kvm\"", "paths below /dev"),
        ("device-plugin-device-nodes = [\"/etc/shadow\"]", "paths below /dev"),
        ("device-plugin-cdi = 1", "true or false"),
        ("numa-topology-alignment-policy = \"Single\"", "SingleNUMANode"),
    ] {
        let dir = tree(&[("etc/stelia/steliad.toml.d/7.toml", line)]);
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("7.toml"), "{error}");
    }
}

#[test]
fn what_is_printed_gives_the_same_settings_and_tells_where_each_came_from() {
    let dir = tree(&[
        (
            "etc/stelia/steliad.toml",
            "placement = \"linear\"\nfloat-cpu-max = \"50000 100000\"",
        ),
        (
            "run/stelia/steliad.toml.d/50-x.toml",
            "placement = \"full-pcpus\"\npartition = \"root\"",
        ),
    ]);
    let loaded = load(dir.path()).unwrap();
    let text = loaded.print();
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("placement").contains("\"full-pcpus\"") && line("placement").ends_with("50-x.toml"));
    assert!(line("float-policy").ends_with("# default"), "{text}");
    let printed = Fragment::parse(&text, Path::new("printed")).unwrap();
    assert_eq!(printed.check().unwrap().settings, loaded.settings);
}

#[test]
fn the_device_plugins_settings_are_read_and_printed() {
    let text = "device-plugin-vms = 8\ndevice-plugin-device-nodes = [\"/dev/kvm\", \"/dev/net/tun\"]\ndevice-plugin-cdi = true";
    let loaded = load(tree(&[("etc/stelia/steliad.toml", text)]).path()).unwrap();
    let plugin = &loaded.settings.device_plugin;
    assert_eq!((plugin.vms, plugin.device_nodes.len(), plugin.cdi), (Some(8), 2, true));
    let printed = Fragment::parse(&loaded.print(), Path::new("printed")).unwrap();
    assert_eq!(printed.check().unwrap().settings, loaded.settings);
}

#[test]
fn the_shipped_file_lists_every_key_with_its_default() {
    let text = fs::read_to_string("../../packaging/steliad.toml").unwrap();
    let keys = |text: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
        lines.filter(|line| line.contains(" = ")).map(str::to_owned).collect()
    };
    let (settings, tables) = text.split_once("\n#[cache-class.gold]\n").unwrap();
    let (class, rule) = tables.split_once("\n#[[adopt]]\n").unwrap();
    let defaults = KEYS.each_ref().map(|key| key.line(&Settings::default()));
    assert_eq!(keys(settings), defaults);
    // Those of a class have no default.
    assert_eq!(keys(class), ["l3-ways = 4", "memory-bandwidth = 50"]);
    // Those of a rule have the values of the one that is named there.
    let kubevirt = AdoptRule::ready_made(ReadyMade::KubeVirt).unwrap();
    let values = RULE_KEYS
        .each_ref()
        .map(|key| format!("{} = {}", key.name, (key.get)(&kubevirt)));
    assert_eq!(
        keys(rule),
        [vec!["use = \"kubevirt\"".to_owned()], values.to_vec()].concat()
    );
    assert_eq!(
        Fragment::parse(&text, Path::new("shipped")).unwrap(),
        Fragment::default()
    );
}

fn rules(text: &str) -> Result<Vec<AdoptRule>, String> {
    let checked = Fragment::parse(text, Path::new("x.toml")).and_then(Fragment::check);
    checked
        .map(|loaded| loaded.settings.policies.adopt)
        .map_err(|error| error.to_string())
}

fn words(patterns: &[Pattern]) -> Vec<&str> {
    patterns.iter().map(Pattern::as_str).collect()
}

#[test]
fn a_ready_made_rule_is_asked_for_by_name_and_its_keys_may_be_changed() {
    for which in ReadyMade::ALL {
        let [rule] = &rules(&format!("[[adopt]]\nuse = {:?}", which.name())).unwrap()[..] else {
            panic!("{which:?}");
        };
        assert_eq!(*rule, AdoptRule::ready_made(which).unwrap());
        assert_eq!((rule.name.as_str(), rule.tree), (which.name(), TreeChoice::Auto));
        let keeps = matches!(which, ReadyMade::KubeVirt | ReadyMade::Libvirt);
        assert_eq!(rule.placement == AdoptPlacement::Keep, keeps);
        assert!(rule.container_may_refuse);
    }
    let text = "[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\nnamespaces = [\"team-*\"]\nplacement = \"linear\"\ntree = \"slice\"";
    let changed = &rules(text).unwrap()[0];
    assert_eq!(words(&changed.namespaces), ["team-*"]);
    assert_eq!(words(&changed.pods), ["virt-launcher-*"]);
    assert_eq!((changed.placement.name(), changed.tree), ("linear", TreeChoice::Slice));
    let own = "[[adopt]]\nname = \"mine\"\nvmm = [\"my-vmm\"]\nthreads = \"cpu-{n}\"";
    let own = &rules(own).unwrap()[0];
    assert_eq!((words(&own.pods), own.threads.index("cpu-3")), (vec!["*"], Some(3)));
}

#[test]
fn drop_ins_add_rules_and_replace_those_of_the_same_name() {
    let dir = tree(&[
        (
            "etc/stelia/steliad.toml",
            "audit-interval-s = 5\n[[adopt]]\nuse = \"kubevirt\"\n[[adopt]]\nuse = \"qemu\"",
        ),
        (
            "etc/stelia/steliad.toml.d/50-x.toml",
            "[[adopt]]\nuse = \"firecracker\"",
        ),
        (
            "etc/stelia/steliad.toml.d/60-x.toml",
            "[[adopt]]\nuse = \"kubevirt\"\ncontainer-may-refuse = false\npods = [\"a\", \"b-*\"]",
        ),
    ]);
    let loaded = load(dir.path()).unwrap();
    let rules = &loaded.settings.policies.adopt;
    let names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["kubevirt", "qemu", "firecracker"]);
    assert!(!rules[0].container_may_refuse && loaded.rule_origins[0].ends_with("60-x.toml"));
    assert!(loaded.rule_origins[2].ends_with("50-x.toml"));
    let text = loaded.print();
    assert!(text.contains("pods = [\"a\", \"b-*\"]\n"), "{text}");
    let printed = Fragment::parse(&text, Path::new("printed")).unwrap().check().unwrap();
    assert_eq!(printed.settings, loaded.settings);
    // A rule of KubeVirt's that says nothing of it makes the container the partition.
    let isolations: Vec<Isolation> = rules.iter().map(|rule| rule.isolation).collect();
    let (vcpus, container) = (Isolation::Vcpus, Isolation::Container);
    assert_eq!(isolations, [container, vcpus, vcpus]);
    let json = serde_json::to_value(&rules[1]).unwrap();
    assert_eq!(
        (&json["threads"], &json["tree"]),
        (&"CPU {n}/KVM".into(), &"auto".into())
    );
}

#[test]
fn a_key_that_has_no_effect_on_the_container_is_refused_with_rule_key_and_reason() {
    let container = "[[adopt]]\nname = \"db\"\nkind = \"container\"\n";
    let kubevirt = "[[adopt]]\nuse = \"kubevirt\"\n";
    let own = "[[adopt]]\nname = \"mine\"\nvmm = [\"my-vmm\"]\nthreads = \"cpu-{n}\"\nisolation = \"container\"\n";
    for (rule, key, says) in [
        (
            container,
            "vmm = [\"x\"]",
            "x.toml: line 4: the rule \"db\" has vmm, which has no effect with kind = \"container\": the container is adopted",
        ),
        (
            container,
            "threads = \"x{n}\"",
            "line 4: the rule \"db\" has threads, which has no effect with kind",
        ),
        (
            container,
            "placement = \"auto\"",
            "line 4: the rule \"db\" has placement, which has no effect with kind = \"container\": no vCPU is placed",
        ),
        (
            container,
            "tree = \"in-place\"",
            "line 4: the rule \"db\" has tree, which has no effect with isolation = \"container\": the container's own cgroup",
        ),
        // The ready-made rule is of the whole container without saying so in the file.
        (
            kubevirt,
            "tree = \"slice\"",
            "line 3: the rule \"kubevirt\" has tree, which",
        ),
        (own, "tree = \"auto\"", "line 6: the rule \"mine\" has tree, which"),
        // A value that is never allowed is said first.
        (
            kubevirt,
            "tree = \"here\"",
            "line 3: tree = \"here\": expected auto, in-place or slice",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\n",
            "kind = \"container\"",
            "line 1: the rule \"qemu\" has use = \"qemu\", which has no effect with kind = \"container\": it says how a VM is found",
        ),
    ] {
        let error = rules(&format!("{rule}{key}")).unwrap_err();
        assert!(error.contains(says) && !error.contains('\n'), "{key}: {error}");
    }
    // What has an effect is allowed: where a VM's vCPUs are, is asked for a VM in such a container too.
    for (rule, key) in [
        (container, "partition = \"member\""),
        (container, "container-may-refuse = false"),
        (container, "isolation = \"container\""),
        (kubevirt, "placement = \"linear\""),
        (kubevirt, "kind = \"container\""),
        (kubevirt, "isolation = \"vcpus\"\ntree = \"slice\""),
        (own, "placement = \"keep\""),
    ] {
        let text = format!("{rule}{key}");
        assert_eq!(rules(&text).map(|rules| rules.len()), Ok(1), "{text}");
    }
}

#[test]
fn what_is_printed_of_rules_for_containers_is_read_again() {
    let text =
        "[[adopt]]\nuse = \"kubevirt\"\n[[adopt]]\nname = \"db\"\nkind = \"container\"\n[[adopt]]\nuse = \"libvirt\"\n";
    let dir = tree(&[("etc/stelia/steliad.toml", text)]);
    let loaded = load(dir.path()).unwrap();
    let printed = loaded.print();
    let again = Fragment::parse(&printed, Path::new("printed")).unwrap().check();
    assert_eq!(again.unwrap().settings, loaded.settings, "{printed}");
    assert_eq!(printed.matches("tree = \"auto\"").count(), 1, "{printed}");
    assert_eq!(printed.matches("\nvmm = ").count(), 2, "{printed}");
}

#[test]
fn what_is_wrong_with_a_rule_is_said_with_its_line() {
    for (text, says) in [
        (
            "\n[[adopt]]\nuse = \"kubevirt\"\nnamespace = [\"a\"]",
            "x.toml: line 4: \"namespace\" is not a key of [[adopt]]; did you mean \"namespaces\"?",
        ),
        (
            "[[adopt]]\nuse = \"kvm\"",
            "line 2: use = \"kvm\": expected kubevirt, libvirt, qemu,",
        ),
        ("[[adopt]]\nuse = 1", "line 2: use = 1: expected"),
        (
            "\n[[adopt]]\npods = [\"a\"]",
            "line 2: a rule of [[adopt]] needs use or name",
        ),
        (
            "[[adopt]]\nname = \"a b\"",
            "line 1: a rule of [[adopt]] needs use or name",
        ),
        (
            "[[adopt]]\nname = \"a\"\nthreads = \"x{n}\"",
            "line 1: the rule \"a\" needs vmm, or use",
        ),
        (
            "[[adopt]]\nname = \"a\"\nvmm = [\"x\"]",
            "line 1: the rule \"a\" needs threads, or use",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\n[[adopt]]\nuse = \"qemu\"",
            "line 3: two rules of this file have the name \"qemu\"",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\nthreads = \"CPU\"",
            "line 3: threads = \"CPU\": expected the name of a thread, at most 15 bytes, with {n}",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\npods = []",
            "line 3: pods = []: expected a list of 1 to 64 names",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\npods = \"a\"",
            "line 3: pods = \"a\": expected a list",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\nplacement = \"best\"",
            "line 3: placement = \"best\": expected keep, auto, guest,",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\ncontainer-may-refuse = \"no\"",
            "line 3: container-may-refuse = \"no\": expected true or false",
        ),
        (
            "[[adopt]]\nuse = \"qemu\"\ntree = \"here\"",
            "line 3: tree = \"here\": expected auto, in-place or slice",
        ),
        (
            "[[adopt]]\nuse = \"kubevirt\"\npartition = \"isolated\"",
            "line 3: partition = \"isolated\": expected auto or member",
        ),
        (
            "\n[adopt]\nuse = \"qemu\"",
            "line 2: adopt: expected tables, each of which begins with [[adopt]]",
        ),
        ("adopt = \"kubevirt\"", "line 1: adopt: expected tables"),
    ] {
        let error = rules(text).unwrap_err();
        assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
    }
    let many: String = (0..65)
        .map(|index| format!("[[adopt]]\nuse = \"qemu\"\nname = \"a{index}\"\n"))
        .collect();
    assert!(rules(&many).unwrap_err().contains("line 193: more than 64 rules"));
}

#[test]
fn an_unknown_key_names_the_nearest_one_or_all() {
    let said = |text: &str| Fragment::parse(text, Path::new("x.toml")).unwrap_err().to_string();
    assert!(said("irq_steering = \"off\"").ends_with("did you mean \"irq-steering\"?"));
    assert!(said("ledgr = true").ends_with("did you mean \"ledger\"?"));
    assert!(said("nonsense = 1").contains("is not a setting; the settings are "));
}

#[test]
fn files_that_are_not_read_are_named_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    };
    let vendor = write("usr/lib/stelia/steliad.toml.d/10-a.toml");
    let ours = write("etc/stelia/steliad.toml.d/10-a.toml");
    let other = write("etc/stelia/steliad.toml.d/60-foo.conf");
    let found = files(root.path());
    assert_eq!(found.read, std::slice::from_ref(&ours), "there is no steliad.toml");
    let main = write("etc/stelia/steliad.toml");
    assert_eq!(files(root.path()).read, [main, ours.clone()]);
    let replaced = (vendor, format!("{} replaces it", ours.display()));
    assert_eq!(
        found.ignored,
        [replaced, (other, "its name does not end in .toml".to_owned())]
    );
}

#[test]
fn hidden_files_and_links_that_lead_nowhere_are_ignored() {
    let dir = tree(&[
        ("etc/stelia/steliad.toml.d/10.toml", "audit-interval-s = 5"),
        ("etc/stelia/steliad.toml.d/.50-x.toml", "zzz"),
        ("usr/lib/stelia/steliad.toml.d/20.toml", "audit-interval-s = 6"),
    ]);
    let folder = dir.path().join("etc/stelia/steliad.toml.d");
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
    link("me@host.1234:1700000000", ".#10.toml");
    link("/nowhere/20.toml", "20.toml");
    link("/nowhere/steliad.toml", "../steliad.toml");
    let loaded = load(dir.path()).unwrap();
    assert_eq!(loaded.settings.audit_interval, Duration::from_secs(5));
    let found = files(dir.path());
    let names = |paths: Vec<&std::path::PathBuf>| -> Vec<String> {
        let name = |path: &&std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        paths.iter().map(name).collect()
    };
    assert_eq!(
        names(found.read.iter().collect()),
        ["10.toml"],
        "the link masks the packaged file"
    );
    let ignored = names(found.ignored.iter().map(|(path, _)| path).collect());
    assert_eq!(
        ignored,
        [".#10.toml", ".50-x.toml", "20.toml", "20.toml", "steliad.toml"]
    );
    let reasons: Vec<&str> = found.ignored.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(reasons[1], "its name begins with a dot");
    assert!(
        reasons[2].ends_with("etc/stelia/steliad.toml.d/20.toml replaces it"),
        "{reasons:?}"
    );
    assert_eq!(reasons[3], "the link leads nowhere: there is no /nowhere/20.toml");
}
