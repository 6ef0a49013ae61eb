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
#[case("hello", "only something without a kind")]
#[case(
    "{apiVersion: v1, kind: Service, metadata: {name: \"a\\nb\"}}",
    r#"only Service "a\nb""#
)]
#[case("{apiVersion: v2, kind: Pod}", r#"only "Pod" of "v2""#)]
#[case("{apiVersion: v1, kind: Pod}", "metadata: it is required")]
#[case("{apiVersion: v1, kind: Pod, metadata: []}", "metadata: it must be a map")]
#[case("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "spec: it is required")]
fn what_is_no_pod_is_refused_by_its_name(#[case] text: &str, #[case] error: &str) {
    let told = read(text, None).unwrap_err().to_string();
    assert!(
        told.ends_with(error) && (!error.starts_with("only") || told.starts_with("there is no Pod")),
        "{told}"
    );
}

#[test]
fn of_several_pods_one_must_be_named() {
    let pod = |name: &str| {
        format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c}}]}}}}\n")
    };
    let text = pod("one") + &pod("two");
    let error = read(&text, None).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"there are several Pods or templates in it: Pod/one, Pod/two; choose one with --pod KIND/NAME"#
    );
    assert_eq!(read(&text, Some("two")).unwrap().0, "two");
    let error = read(&text, Some("six")).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"there is no Pod or template "six" in it, only Pod "one", Pod "two""#
    );
}

#[rstest]
#[case("{limits: {cpu: 2x}}", r#"limits.cpu: "2x" is not a quantity"#)]
#[case("{limits: {cpu: -1}}", r#"limits.cpu: "-1" is negative"#)]
#[case("{limits: {memory: 8Ei}}", r#"limits.memory: "8Ei" is more than 2⁶³ − 1"#)]
#[case("{limits: {cpu: [1]}}", "limits.cpu: it must be a number or a string")]
#[case("{limits: [cpu]}", "limits: it must be a map")]
#[case("{limit: {cpu: 1}}", "limit: resources has no such field")]
#[case("{requests: {cpu: 2}, limits: {cpu: 1}}", "requests.cpu: 2 is more than the limit")]
#[case("{limits: {gpu: 1}}", r#"limits.gpu: there is no resource "gpu""#)]
#[case(
    "{limits: {\"a\\u001bb\": 1}}",
    r#"limits.a\u{1b}b: there is no resource "a\u{1b}b""#
)]
#[case("{limits: {kubernetes.io/x: 1}}", "limits.kubernetes.io/x: there is no resource")]
#[case("{requests: {example.com/nic: 1}}", "requests.example.com/nic: it needs a limit")]
#[case("{limits: {example.com/nic: 1500m}}", "limits.example.com/nic: devices are whole")]
#[case(
    "{limits: {cpu: 1, hugepages-2Mi: 3Mi}}",
    "limits.hugepages-2Mi: it is not a multiple of the page size, 2097152 bytes"
)]
#[case("{limits: {hugepages-2Mi: 4Mi}}", "limits.hugepages-2Mi: huge pages need a request")]
#[case(
    "{requests: {cpu: 1, hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 4Mi}}",
    "requests.hugepages-2Mi: 2097152 is requested and the limit is 4194304: they must be equal"
)]
fn resources_are_held_to_the_api_servers_rules(#[case] resources: &str, #[case] error: &str) {
    let told = with(resources).unwrap_err().to_string();
    assert!(
        told.starts_with(&format!("spec.containers[0].resources.{error}")),
        "{told}"
    );
}

#[rstest]
#[case("containers: []", "spec.containers: a pod has at least one container")]
#[case("containers: {}", "spec.containers: it must be a list")]
#[case("containers: [{image: x}]", "spec.containers[0].name: it is required")]
#[case("containers: [{name: A}]", r#"spec.containers[0].name: "A" is not a container name"#)]
#[case("containers: [{name: a}, {name: a}]", "spec.containers[1].name: there are two")]
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
    assert!(refused(spec).starts_with(error), "{}", refused(spec));
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

/// What the containers of the described pod request: CPUs in thousandths, and memory in MiB.
fn requested(text: &str) -> Vec<(String, Option<u64>, Option<u64>)> {
    let found = described(text, None).unwrap();
    let containers = found.pod.containers.iter().map(|container| {
        let requests = &container.resources.requests;
        let mib = requests.memory.map(|bytes| bytes >> 20);
        (container.name.clone(), requests.milli_cpus, mib)
    });
    containers.collect()
}

#[rstest]
#[case("apps/v1", "Deployment", "spec: {template: POD}")]
#[case("apps/v1", "StatefulSet", "spec: {template: POD}")]
#[case("apps/v1", "DaemonSet", "spec: {template: POD}")]
#[case("apps/v1", "ReplicaSet", "spec: {template: POD}")]
#[case("v1", "ReplicationController", "spec: {template: POD}")]
#[case("batch/v1", "Job", "spec: {template: POD}")]
#[case("batch/v1", "CronJob", "spec: {jobTemplate: {spec: {template: POD}}}")]
#[case("v1", "PodTemplate", "template: POD")]
fn a_workloads_pod_is_planned_by_its_template(#[case] version: &str, #[case] kind: &str, #[case] rest: &str) {
    let pod = |cpu: &str| {
        let pod = format!(
            "{{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: vm, resources: {{limits: {{cpu: {cpu}, memory: 1Gi}}}}}}]}}}}"
        );
        let rest = rest.replace("POD", &pod);
        format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: web}}, {rest}}}")
    };
    let found = described(&pod("4"), None).unwrap();
    assert_eq!((found.name.as_str(), found.assumed.len()), ("web", 0));
    assert_eq!(requested(&pod("4")), [("vm".to_owned(), Some(4000), Some(1024))]);
    let (own, metadata) = (&found.document["kind"], &found.document["metadata"]);
    assert!(own == "Pod" && metadata["name"] == "web" && metadata["labels"]["a"] == "b");
    // The path is one in the object.
    let path = match kind {
        "CronJob" => "spec.jobTemplate.spec.template",
        "PodTemplate" => "template",
        _ => "spec.template",
    };
    assert_eq!(
        described(&pod("4x"), None).unwrap_err().to_string(),
        format!("{path}.spec.containers[0].resources.limits.cpu: \"4x\" is not a quantity, such as 2, 500m or 1Gi")
    );
}

#[test]
fn a_pod_in_the_text_goes_before_templates_and_a_template_can_be_named() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: one}, spec: {containers: [{name: a}]}}";
    let set = |name: &str| workload("Deployment", name, "", "{name: a}");
    let text = [pod, &set("two"), &set("three")].join("\n---\n");
    let name = |name: Option<&str>| described(&text, name).map(|found| found.name);
    assert_eq!(name(None), Ok("one".to_owned()));
    assert_eq!(
        described(&text, None).unwrap().assumed,
        ["the answer is for the Pod and not for Deployment/two, Deployment/three, which --pod KIND/NAME chooses"]
    );
    assert_eq!(name(Some("two")), Ok("two".to_owned()));
    assert_eq!(described(&text, Some("one")).unwrap().assumed, [""; 0]);
    let sets = [set("two"), set("three")].join("\n---\n");
    assert_eq!(
        described(&sets, None).unwrap_err().to_string(),
        r#"there are several Pods or templates in it: Deployment/two, Deployment/three; choose one with --pod KIND/NAME"#
    );
    let empty = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}";
    assert_eq!(described(empty, None).unwrap_err().to_string(), "spec: it is required");
}

/// An object whose template has this container, with more fields of its `spec`.
fn workload(kind: &str, name: &str, more: &str, container: &str) -> String {
    let template = format!("{{spec: {{containers: [{container}]}}}}");
    format!("{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{more} template: {template}}}}}")
}

fn vm(domain: &str) -> String {
    format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: vm-005}}, spec: {{template: {{spec: {{domain: {domain}, \
         nodeSelector: {{zone: a}}}}}}}}}}"
    )
}

#[test]
fn of_objects_with_the_same_name_one_is_chosen_by_its_kind() {
    let of = |kind: &str, container: &str| workload(kind, "web", "", container);
    let text = [
        of("Deployment", "{name: a, resources: {requests: {cpu: 2}}}"),
        of("StatefulSet", "{name: a, resources: {requests: {cpu: 4}}}"),
    ]
    .join("\n---\n");
    let cpus = |name: &str| {
        let found = described(&text, Some(name)).map_err(|cause| cause.to_string())?;
        Ok(found.pod.containers[0].resources.requests.milli_cpus)
    };
    assert_eq!(
        (cpus("Deployment/web"), cpus("statefulset/web")),
        (Ok(Some(2000)), Ok(Some(4000)))
    );
    let several =
        "there are several Pods or templates in it: Deployment/web, StatefulSet/web; choose one with --pod KIND/NAME";
    assert_eq!(cpus("web"), Err(several.to_owned()));
    let error = cpus("Pod/web").unwrap_err();
    assert!(error.starts_with(r#"there is no Pod or template "Pod/web""#), "{error}");
}

#[rstest]
#[case("", Ok(None))]
#[case("replicas: 1,", Ok(None))]
#[case("replicas: 50,", Ok(Some("the answer is for one of 50 replicas")))]
#[case(
    "replicas: 0,",
    Ok(Some("the object has 0 replicas: the answer is for the pod that the first would be"))
)]
#[case("replicas: -5,", Err("spec.replicas: it must not be negative"))]
#[case("replicas: two,", Err("spec.replicas: it must be a number"))]
fn the_number_of_replicas_is_named(#[case] replicas: &str, #[case] expected: Result<Option<&str>, &str>) {
    let found = described(&workload("Deployment", "a", replicas, "{name: a}"), None);
    let told = found.map(|found| found.assumed.first().cloned());
    let expected = expected
        .map(|assumed| assumed.map(str::to_owned))
        .map_err(str::to_owned);
    assert_eq!(told.map_err(|error| error.to_string()), expected);
}

/// 228 MiB for the processes, 32 for a screen, 8 for a vCPU, 100 for CPUs of its own, and a 512th of requested memory.
#[rstest]
#[case::dedicated("{cpu: {cores: 4, dedicatedCpuPlacement: true}, memory: {guest: 4Gi}}", 4000, 4096 + 100 + 228 + 32 + 32)]
#[case::emulator_thread(
    "{cpu: {sockets: 2, threads: 2, dedicatedCpuPlacement: true, isolateEmulatorThread: true}, memory: {guest: 4Gi}}",
    5000,
    4096 + 100 + 228 + 32 + 32
)]
#[case::io_threads(
    "{cpu: {cores: 4, dedicatedCpuPlacement: true}, ioThreads: {supplementalPoolThreadCount: 2}, memory: {guest: 4Gi}}",
    6000,
    4096 + 100 + 228 + 32 + 32
)]
#[case::without_a_screen(
    "{cpu: {cores: 4, dedicatedCpuPlacement: true}, memory: {guest: 4Gi}, devices: {autoattachGraphicsDevice: false}}",
    4000,
    4096 + 100 + 228 + 32
)]
#[case::shared("{cpu: {cores: 4}, memory: {guest: 4Gi}}", 400, 4096 + 228 + 32 + 32)]
#[case::by_resources("{resources: {requests: {cpu: 1500m, memory: 2Gi}}}", 1500, 2048 + 4 + 228 + 16 + 32)]
fn the_pod_of_a_kubevirt_vm_is_as_kubevirt_makes_it(#[case] domain: &str, #[case] milli: u64, #[case] mib: u64) {
    assert_eq!(requested(&vm(domain)), [("compute".to_owned(), Some(milli), Some(mib))]);
    let found = described(&vm(domain), None).unwrap();
    assert_eq!((found.name.as_str(), found.assumed.len()), ("vm-005", 1));
    assert_eq!(found.document["spec"]["nodeSelector"]["zone"], "a");
    let is_dedicated = domain.contains("dedicatedCpuPlacement");
    assert_eq!(found.pod.qos() == QosClass::Guaranteed, is_dedicated);
}

#[test]
fn an_even_number_of_cpus_huge_pages_and_devices_are_kubevirts_too() {
    let text = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: a, annotations: \
                {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ''}}, spec: {domain: {cpu: {cores: 4, dedicatedCpuPlacement: true, \
                isolateEmulatorThread: true}, memory: {guest: 4Gi, hugepages: {pageSize: 2Mi}}, devices: {gpus: [{name: a, deviceName: \
                nvidia.com/T4}, {name: b, deviceName: nvidia.com/T4}]}}}}";
    let found = described(text, None).unwrap();
    let limits = &found.document["spec"]["containers"][0]["resources"]["limits"];
    let told = ["cpu", "hugepages-2Mi", "nvidia.com/T4"].map(|name| limits[name].as_str());
    assert_eq!(told, [Some("6"), Some("4294967296"), Some("2")]);
    let overhead: u64 = (100 + 228 + 32 + 32 + 1024) << 20;
    assert_eq!(limits["memory"], overhead.to_string());
}

#[rstest]
#[case(
    "{cpu: {cores: 4}}",
    "spec.template.spec.domain: memory.guest or resources.requests.memory is required"
)]
#[case(
    "{memory: {guest: x}}",
    r#"spec.template.spec.domain.memory.guest: "x" is not a quantity, such as 2, 500m or 1Gi"#
)]
#[case(
    "{memory: {guest: 1Gi}, cpu: {cores: two}}",
    "spec.template.spec.domain.cpu.cores: it must be a number"
)]
fn what_is_wrong_in_a_vm_is_named_where_it_is(#[case] domain: &str, #[case] error: &str) {
    assert_eq!(described(&vm(domain), None).unwrap_err().to_string(), error);
}

#[test]
fn a_vm_whose_size_is_in_an_instance_type_is_refused() {
    let text = "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: a}, spec: {instancetype: {name: u1.small}, template: \
                {spec: {domain: {}}}}}";
    let error = described(text, None).unwrap_err().to_string();
    assert!(error.starts_with("spec.instancetype: "), "{error}");
    let text = "{apiVersion: pool.kubevirt.io/v1beta1, kind: VirtualMachinePool, metadata: {name: p}, spec: {replicas: 3, \
                virtualMachineTemplate: {spec: {instancetype: {name: u1.2xlarge}, template: {spec: {domain: {}}}}}}}";
    let error = described(text, None).unwrap_err().to_string();
    assert!(
        error.starts_with("spec.virtualMachineTemplate.spec.instancetype"),
        "{error}"
    );
}

#[test]
fn the_objects_of_a_list_count_like_documents() {
    let list = |kind: &str| {
        format!(
            "{{apiVersion: v1, kind: {kind}, items: [{{apiVersion: v1, kind: Service, metadata: {{name: s}}}}, \
             {{apiVersion: v1, kind: Pod, metadata: {{name: one}}, spec: {{containers: [{{name: a}}]}}}}]}}"
        )
    };
    assert_eq!(described(&list("List"), None).unwrap().name, "one");
    assert_eq!(described(&list("List"), Some("one")).unwrap().name, "one");
    let error = described(&list("List"), Some("s")).map(|found| found.name).unwrap_err();
    assert!(error.to_string().contains(r#"only Service "s", Pod "one""#), "{error}");
    // `items` of anything else is a field like others.
    assert!(described(&list("Inventory"), None).is_err());
    assert!(described("{apiVersion: v1, kind: List, items: 5}", None).is_err());
}

/// Whoever writes the pod chooses how long it takes to plan for it.
#[test]
fn a_pod_has_so_many_containers_and_no_more() {
    let containers = |count: usize| {
        let all: Vec<String> = (0..count).map(|number| format!("{{name: c{number}}}")).collect();
        format!("containers: [{{name: vm}}], initContainers: [{}]", all.join(", "))
    };
    assert_eq!(of(&containers(63)).unwrap().containers.len(), 64);
    assert_eq!(
        refused(&containers(64)),
        "spec.containers: a pod of more than 64 containers is not planned for"
    );
    let names = |count: usize| {
        let all: Vec<String> = (0..count)
            .map(|number| format!("example.com/{number:0>40}: 1"))
            .collect();
        format!("{{limits: {{{}}}}}", all.join(", "))
    };
    assert!(with(&names(100)).is_ok());
    assert!(with(&names(400)).unwrap_err().to_string().contains("the names of"));
}
