//! Described nodes, invalid words.

use super::*;

#[test]
fn a_described_node_answers_as_this_one_does() {
    let memory = numa::NumaMemory {
        total: 16 << 30,
        ..numa::NumaMemory::default()
    };
    let numa = |id: u32| {
        let described = numa::KernelNumaNode {
            distances: [(id, 10), (1 - id, 21)].into(),
            memory: Some(memory),
            ..numa::KernelNumaNode::default()
        };
        (id, described)
    };
    let facts = Facts {
        numa: [numa(0), numa(1)].into(),
        reserved: set("0,8"),
        exclusive: set("1,9"),
        shared: set("0,2-8,10-15"),
        allocations: given(&set("1,9")),
        kubelet: Kubelet {
            cpu_policy: "static".to_owned(),
            reserved: set("0,8"),
            alignment: Some(Alignment {
                policy: "restricted".to_owned(),
                scope: "pod".to_owned(),
            }),
            ..Kubelet::default()
        },
        ..facts("worker-7", topology())
    };
    let here = node(&format!(
        "{STATIC}topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"
    ));
    write(here.path(), "worker.json", printed(&facts));
    let file = here.path().join("worker.json").display().to_string();
    for cpus in ["2", "8", "13", "1500m"] {
        let line = format!("-c cpus={cpus},memory=1Gi --until-full");
        let described = answered(Path::new("/nowhere"), &format!("{line} --node {file}"));
        let own = answered(here.path(), &line);
        assert_eq!(described["node"], "worker-7");
        for part in [
            "admitted",
            "rejection",
            "containers",
            "settings",
            "until_full",
            "not_exclusive",
            "why_not_better",
        ] {
            assert_eq!(described[part], own[part], "{part}");
        }
    }
    write(here.path(), "worker.json", "kind: Pod");
    let (_, reason) = refused(here.path(), &format!("-c cpus=1 --node {file}"));
    assert!(reason.starts_with(&format!("{file}: ")), "{reason}");
}

#[test]
fn a_wrong_word_is_wrong_usage() {
    for words in ["-c cpus=x", "-c name=a -c name=a"] {
        let failure = steliactl(Path::new("/nowhere"), words).unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{words:?}");
    }
    for words in [
        &["plan"][..],
        &["plan", "pod.yaml", "-c", "cpus=1"],
        &["plan", "-c", "cpus=1", "--pod", "a"],
        &["plan", "-c", "cpus=1", "--devices", "gpu=0:1"],
        &["plan", "-c", "cpus=1", "--kubelet-config", "a.yaml"],
    ] {
        assert!(is_refused(words), "{words:?}");
    }
}
