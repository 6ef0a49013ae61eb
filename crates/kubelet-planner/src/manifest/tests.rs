use proptest::prelude::*;
use rstest::rstest;
use stelia_kubelet::QosClass;

use super::*;
use crate::pod::{Amounts, ContainerKind};

/// A Pod with one container that has these `resources`, in YAML's flow style.
fn with(resources: &str) -> Result<Pod, ManifestError> {
    of(&format!("containers: [{{name: vm, resources: {resources}}}]"))
}

/// A Pod of this spec.
fn of(spec: &str) -> Result<Pod, ManifestError> {
    read(
        &format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{{spec}}}}}"),
        None,
    )
    .map(|(_, pod)| pod)
}

fn refused(spec: &str) -> String {
    of(spec).unwrap_err().to_string()
}

const WHOLE: &str = r"
# A VM with a sidecar.
apiVersion: v1
kind: Service
metadata: {name: web}
---
---
apiVersion: v1
kind: Pod
metadata:
  name: vm
  uid: 7d3c
  labels: {a: b}
spec:
  hostUsers: false
  initContainers:
  - name: install
    image: example.com/runner
  - name: side
    restartPolicy: Always
    resources:
      limits: {cpu: 500m, memory: 128Mi}
  containers:
  - name: instance
    resources:
      requests: {memory: 8Gi}
      limits:
        cpu: 4
        memory: 8Gi
        hugepages-2Mi: 1Gi
        hugepages-1Gi: 2Gi
        example.com/nic: 2
        ephemeral-storage: 1G
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
";

#[test]
fn a_manifest_is_the_pod_that_the_api_server_stores() {
    let (name, pod) = read(WHOLE, None).unwrap();
    assert_eq!(
        (name.as_str(), pod.uid.as_str(), pod.resources.as_ref()),
        ("vm", "7d3c", None)
    );
    let named: Vec<(&str, ContainerKind)> = pod.containers.iter().map(|it| (it.name.as_str(), it.kind)).collect();
    assert_eq!(
        named,
        [
            ("install", ContainerKind::Init),
            ("side", ContainerKind::Sidecar),
            ("instance", ContainerKind::App)
        ]
    );
    let amounts = Amounts {
        milli_cpus: Some(4000),
        memory: Some(8 << 30),
        huge_pages: [(2 << 20, 1 << 30), (1 << 30, 2 << 30)].into(),
        devices: [("example.com/nic".to_owned(), 2)].into(),
    };
    assert_eq!(pod.containers[2].resources.limits, amounts);
    assert_eq!(pod.containers[2].resources.requests, amounts);
    assert_eq!(pod.containers[1].resources.requests.milli_cpus, Some(500));
    assert_eq!(pod.containers[0].resources.limits, Amounts::default());
    assert_eq!(pod.qos(), QosClass::Burstable);
    assert_eq!(read(WHOLE, Some("vm")).unwrap().1, pod);
}

#[test]
fn json_is_read_too_indented_by_tabs() {
    let text = "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\",\n\t\"metadata\": {\"generateName\": \"vm-\"},\n\t\"spec\": {\"containers\":\n\
                \t\t[{\"name\": \"a\", \"resources\": {\"limits\": {\"cpu\": 0.5, \"memory\": \"1e9\"}}}]}}";
    let (name, pod) = read(text, None).unwrap();
    let limits = &pod.containers[0].resources.limits;
    assert_eq!(
        (name.as_str(), limits.milli_cpus, limits.memory),
        ("vm-", Some(500), Some(1_000_000_000))
    );
}

#[test]
fn pod_level_resources_are_what_is_left_out() {
    let pod = of("resources: {limits: {cpu: 8, memory: 4Gi}}, containers: [{name: a, resources: {requests: {cpu: 2}}}, {name: b}]").unwrap();
    let own = pod.resources.as_ref().unwrap();
    assert_eq!(
        (own.requests.milli_cpus, own.requests.memory),
        (Some(2000), Some(4 << 30))
    );
    assert_eq!(pod.qos(), QosClass::Burstable);
    let pod =
        of("resources: {requests: {cpu: 8, memory: 4Gi}, limits: {cpu: 8, memory: 4Gi}}, containers: [{name: a}]")
            .unwrap();
    assert_eq!(pod.qos(), QosClass::Guaranteed);
}

#[rstest]
#[case("", "it is empty")]
#[case("---\n# nothing\n---\n", "it is empty")]
#[case("hello", "there is no Pod in it, only something without a kind")]
#[case(
    "{apiVersion: apps/v1, kind: Deployment, metadata: {name: \"a\\nb\"}}",
    r#"there is no Pod in it, only Deployment "a\nb""#
)]
#[case("{apiVersion: v2, kind: Pod}", r#"there is no Pod in it, only "Pod" of "v2""#)]
#[case("{apiVersion: v1, kind: Pod}", "metadata: it is required")]
#[case("{apiVersion: v1, kind: Pod, metadata: []}", "metadata: it must be a map")]
#[case("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "spec: it is required")]
fn what_is_no_pod_is_refused_by_its_name(#[case] text: &str, #[case] error: &str) {
    assert_eq!(read(text, None).unwrap_err().to_string(), error);
}

#[test]
fn of_several_pods_one_must_be_named() {
    let pod = |name: &str| {
        format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c}}]}}}}\n")
    };
    let text = pod("one") + &pod("two");
    let error = read(&text, None).unwrap_err().to_string();
    assert_eq!(error, r#"there are several Pods in it: "one", "two"; name one"#);
    assert_eq!(read(&text, Some("two")).unwrap().0, "two");
    let error = read(&text, Some("six")).unwrap_err().to_string();
    assert_eq!(error, r#"there is no Pod "six" in it, only Pod "one", Pod "two""#);
}

#[rstest]
#[case(
    "{limits: {cpu: 2x}}",
    r#"limits.cpu: "2x" is not a quantity, such as 2, 500m or 1Gi"#
)]
#[case("{limits: {cpu: -1}}", r#"limits.cpu: "-1" is negative"#)]
#[case("{limits: {memory: 8Ei}}", r#"limits.memory: "8Ei" is more than 2⁶³ − 1"#)]
#[case("{limits: {cpu: [1]}}", "limits.cpu: it must be a number or a string")]
#[case("{limits: [cpu]}", "limits: it must be a map")]
#[case("{limit: {cpu: 1}}", "limit: resources has no such field")]
#[case(
    "{requests: {cpu: 2}, limits: {cpu: 1}}",
    "requests.cpu: 2 is more than the limit, 1"
)]
#[case("{limits: {gpu: 1}}", r#"limits.gpu: there is no resource "gpu""#)]
#[case(
    "{limits: {\"a\\u001bb\": 1}}",
    r#"limits.a\u{1b}b: there is no resource "a\u{1b}b""#
)]
#[case(
    "{limits: {kubernetes.io/x: 1}}",
    r#"limits.kubernetes.io/x: there is no resource "kubernetes.io/x""#
)]
#[case(
    "{requests: {example.com/nic: 1}}",
    "requests.example.com/nic: it needs a limit of the same amount"
)]
#[case("{limits: {example.com/nic: 1500m}}", "limits.example.com/nic: devices are whole")]
#[case(
    "{limits: {cpu: 1, hugepages-2Mi: 3Mi}}",
    "limits.hugepages-2Mi: it is not a multiple of the page size, 2097152 bytes"
)]
#[case(
    "{limits: {hugepages-2Mi: 4Mi}}",
    "limits.hugepages-2Mi: huge pages need a request of cpu or memory beside them"
)]
#[case(
    "{requests: {cpu: 1, hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 4Mi}}",
    "requests.hugepages-2Mi: 2097152 is requested and the limit is 4194304: they must be equal"
)]
fn resources_are_held_to_the_api_servers_rules(#[case] resources: &str, #[case] error: &str) {
    let told = with(resources).unwrap_err().to_string();
    assert_eq!(told, format!("spec.containers[0].resources.{error}"));
}

#[rstest]
#[case("containers: []", "spec.containers: a pod has at least one container")]
#[case("containers: {}", "spec.containers: it must be a list")]
#[case("containers: [{image: x}]", "spec.containers[0].name: it is required")]
#[case("containers: [{name: A}]", r#"spec.containers[0].name: "A" is not a container name"#)]
#[case(
    "containers: [{name: a}, {name: a}]",
    r#"spec.containers[1].name: there are two containers "a""#
)]
#[case(
    "initContainers: [{name: i, restartPolicy: Maybe}], containers: [{name: a}]",
    r#"spec.initContainers[0].restartPolicy: "Maybe" is not a restart policy"#
)]
#[case(
    "resources: {limits: {example.com/nic: 1}}, containers: [{name: a}]",
    r#"spec.resources.limits.example.com/nic: a pod as a whole has no resource "example.com/nic""#
)]
#[case(
    "resources: {requests: {cpu: 1}}, containers: [{name: a, resources: {requests: {cpu: 800m}}}, {name: b, resources: {requests: {cpu: 300m}}}]",
    "spec.resources.requests.cpu: 1 is less than what its containers request together, 1100m"
)]
#[case(
    "resources: {limits: {cpu: 1}}, containers: [{name: a, resources: {requests: {cpu: 0}, limits: {cpu: 2}}}]",
    "spec.containers[0].resources.limits.cpu: 2 is more than the pod's limit, 1"
)]
fn specs_are_held_to_them_too(#[case] spec: &str, #[case] error: &str) {
    assert_eq!(refused(spec), error);
}

#[test]
fn a_container_in_a_word_is_guaranteed() {
    let told = container("name=vm,kind=sidecar,cpus=2,memory=1Gi,hugepages-1Gi=1Gi", 3).unwrap();
    assert_eq!((told.name.as_str(), told.kind), ("vm", ContainerKind::Sidecar));
    assert_eq!(told.resources.requests, told.resources.limits);
    assert_eq!(told.resources.limits.huge_pages, [(1 << 30, 1 << 30)].into());
    for (text, error) in [
        ("cpus", "cpus: it is not KEY=VALUE"),
        ("cpus=a", r#"cpus: "a" is not a quantity, such as 2, 500m or 1Gi"#),
        ("cpus=1,cpu=2", "cpu: it is given twice"),
        ("kind=job", r#"kind: "job" is not app, init or sidecar"#),
        ("name=a b", r#"name: "a b" is not a container name"#),
        ("name=a,disk=1", r#"a.limits.disk: there is no resource "disk""#),
    ] {
        assert_eq!(container(text, 0).unwrap_err().to_string(), error);
    }
}

#[test]
fn aliases_of_aliases_and_deep_nests_end_soon() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{before}]\n");
    }
    for text in [bomb, "[".repeat(100_000), "{a: ".repeat(100_000), "{".repeat(100_000)] {
        assert!(matches!(read(&text, None), Err(ManifestError::Syntax(_))));
    }
    let long = " ".repeat(MAX_BYTES + 1);
    assert_eq!(read(&long, None), Err(ManifestError::TooLong(MAX_BYTES)));
}

proptest! {
    #[test]
    fn whatever_is_written_is_answered(text in "[-a-z0-9:{}\\[\\],.\n &*\"|>#]{0,200}", name in proptest::option::of("[a-z]{1,3}")) {
        let _ = read(&text, name.as_deref());
        let _ = of(&text);
        let _ = with(&text);
        let _ = container(&text, 0);
    }
}
