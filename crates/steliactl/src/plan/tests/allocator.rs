//! Nodes on which steliad assigns the CPUs.

use stelia_koordinator::allocator::{AllocatorPolicies, HeldCpus};
use stelia_koordinator::report::Allocator;
use stelia_koordinator::report::testing;

use stelia_koordinator::allocator::CpuSource;

use super::*;

/// Eight CPUs, of which 1 and 6-7 are free.
fn described() -> (TempDir, String) {
    let policies = AllocatorPolicies {
        source: CpuSource::Steliad,
        reserved: set("0"),
        ..AllocatorPolicies::default()
    };
    let allocator = Some(Allocator {
        policies,
        held: HeldCpus::default(),
        lsr: CpuSet::new(),
    });
    let folder = TempDir::new().unwrap();
    let facts = Facts {
        allocator,
        ..testing::facts()
    };
    write(folder.path(), "node.json", printed(&facts));
    let words = format!("--node {}", folder.path().join("node.json").display());
    (folder, words)
}

#[test]
fn a_pod_that_fits_is_told_its_cpus_and_its_score() {
    let (_folder, node) = described();
    let line = format!("{node} --cpus 2 --numa-topology-alignment-policy SingleNUMANode");
    let nowhere = Path::new("/nowhere");
    holds(
        &answered(nowhere, &line),
        json!({
            "/assigned_by": "steliad", "/admitted": true, "/settings": null,
            "/placement": {
                "qos": "LSE", "cpus": "6-7", "runs-on": "6-7", "numa-nodes": [1], "aligned": true, "exclusivity": "not-asked",
                "score": 150, "score-numa": 100, "score-cpus": 50,
            },
        }),
    );
    let least = answered(nowhere, &format!("{line} --scoring-strategy LeastAllocated"));
    holds(&least, json!({"/placement/score": 50}));
    // Of a whole pod the VM's container gets them.
    let pod = "-c name=vm,cpus=2,memory=1Gi -c name=net,kind=sidecar,cpus=1,memory=1Gi";
    insta::assert_snapshot!(told(nowhere, &format!("{node} {pod}")));
}

#[test]
fn a_pod_that_does_not_fit_is_told_why_and_fails_the_command() {
    let (_folder, node) = described();
    for (pod, reason) in [("--cpus 4", "NotAllocated"), ("-c cpus=1 --qos LSE", "NotGuaranteed")] {
        let (printed, why) = refused(Path::new("/nowhere"), &format!("{node} {pod}"));
        says(&printed, &[reason]);
        says(&why, &["steliad would reject the pod", reason]);
    }
}

#[test]
fn options_for_the_other_one_are_refused() {
    let (_folder, node) = described();
    let kubelets = super::node(STATIC);
    for line in [
        format!("{node} --cpus 1 --until-full"),
        format!("{node} --cpus 1 --devices a/b=0:1"),
        format!("{TWO} --qos LS"),
        format!("{TWO} --cpus 1"),
        "--cpus 1 --scoring-strategy LeastAllocated".to_owned(),
        "- --node -".to_owned(),
    ] {
        let failure = steliactl(kubelets.path(), &line).unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{line}: {failure}");
    }
    // The number of CPUs alone is a pod for both.
    holds(
        &answered(kubelets.path(), "--cpus 2"),
        json!({"/assigned_by": "kubelet", "/containers/0/cpus": "2,10", "/placement": null}),
    );
    // Whatever the node says, a configuration of kubelet's asks kubelet.
    let config = kubelets.path().join("kubelet.yaml").display().to_string();
    let text = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n";
    write(kubelets.path(), "kubelet.yaml", text);
    let line = format!("{node} --kubelet-config {config} --cpus 1");
    assert_eq!(answered(kubelets.path(), &line)["assigned_by"], "kubelet");
}

#[test]
fn this_nodes_settings_say_who_is_asked() {
    let root = node(STATIC);
    write(
        root.path(),
        "etc/stelia/steliad.toml",
        "cpu-source = \"steliad\"\nreserved-cpus = \"0\"\n",
    );
    assert_eq!(refused(root.path(), "--cpus 1").1, "no daemon");
}
