//! Files as distributions write them, shortened to the keys that are peculiar to each: kubelet 1.36 starts with them, but for what is named.

use super::*;

const OPENSHIFT: &str = r#"
authentication: {anonymous: {}, webhook: {cacheTTL: 0s}, x509: {clientCAFile: /etc/kubernetes/kubelet-ca.crt}}
authorization: {webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
containerRuntimeEndpoint: ""
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
cpuManagerReconcilePeriod: 5s
crashLoopBackOff: {}
evictionHard: {imagefs.available: 15%, memory.available: 100Mi, nodefs.available: 10%, nodefs.inodesFree: 5%}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memoryManagerPolicy: Static
memorySwap: {}
reservedMemory: [{limits: {memory: 1100Mi}, numaNode: 0}]
reservedSystemCPUs: 0-1,32-33
systemReserved: {memory: 500Mi}
kubeReserved: {memory: 500Mi}
shutdownGracePeriod: 0s
volumeStatsAggPeriod: 0s
featureGates: {AlibabaPlatform: true, RotateKubeletServerCertificate: true}
"#;

/// nodeadm writes JSON.
const EKS: &str = r#"{
  "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
  "address": "0.0.0.0", "authentication": {"x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"}, "webhook": {"enabled": true, "cacheTTL": "2m0s"}},
  "clusterDNS": ["10.100.0.10"], "cgroupDriver": "systemd", "cgroupRoot": "/", "maxPods": 58,
  "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
  "kubeReserved": {"cpu": "80m", "ephemeral-storage": "1Gi", "memory": "893Mi"}, "kubeReservedCgroup": "/runtime",
  "systemReservedCgroup": "/system", "providerID": "aws:///a/i-0", "logging": {"flushFrequency": 0, "verbosity": 2, "options": {"json": {"infoBufferSize": "0"}}}
}"#;

const TALOS: &str = "authorization: {mode: Webhook}\ncgroupRoot: /\nsystemCgroups: /system\nkubeletCgroups: /podruntime/kubelet\n\
    podPidsLimit: 10000\nprotectKernelDefaults: true\nresolvConf: /system/resolved/resolv.conf\nrotateCertificates: true\n\
    seccompDefault: true\nshutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\nstreamingConnectionIdleTimeout: 5m0s\n\
    systemReserved: {cpu: 50m, ephemeral-storage: 256Mi, memory: 512Mi, pid: \"100\"}\ntlsMinVersion: VersionTLS13\n";

/// Percentages of memory, null for a map, and a key of a kubelet that is long gone.
const DECKHOUSE: &str = "cgroupsPerQOS: true\nconfigTrialDuration: 10m0s\nevictionHard: {memory.available: 1%}\nevictionMinimumReclaim: null\n\
    evictionSoftGracePeriod: {memory.available: 1m30s}\nkubeReserved: {memory: 500m}\nserializeImagePulls: no\n";

const KIND: &str = "cgroupDriver: systemd\ncgroupRoot: /kubelet\nevictionHard: {imagefs.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%}\n\
    failSwapOn: false\nimageGCHighThresholdPercent: 100\nruntimeRequestTimeout: 0s\nstaticPodPath: /etc/kubernetes/manifests\n";

#[test]
fn files_of_distributions_are_taken() {
    let openshift = of(OPENSHIFT);
    assert_eq!((openshift.warnings.len(), openshift.reserved_memory.len()), (0, 1));
    assert_eq!(openshift.reserved_system_cpus.to_string(), "0-1,32-33");
    let eks = KubeletConfig::new(
        Some(File::parse(EKS, "config.json").unwrap()),
        Vec::new(),
        Flags::default(),
    )
    .unwrap();
    assert_eq!((eks.warnings.len(), eks.kube_reserved_cgroup.as_str()), (0, "/runtime"));
    assert_eq!(eks.reserved_count(), Ok(1));
    let talos = of(TALOS);
    assert_eq!(
        (talos.warnings.len(), talos.system_reserved["pid"].as_str()),
        (0, "100")
    );
    let deckhouse = of(DECKHOUSE);
    assert_eq!(deckhouse.eviction_hard["memory.available"], "1%");
    assert!(deckhouse.warnings.len() == 1 && deckhouse.warnings[0].to_string().contains("configTrialDuration"));
    let kind = of(KIND);
    assert_eq!((kind.warnings.len(), kind.cgroup_root.as_str()), (0, "/kubelet"));
}

/// As it is in guides: kubelet does not start with these.
#[test]
fn what_guides_get_wrong_is_named() {
    let wrong = |keys: &str| {
        File::parse(&format!("{HEAD}{keys}"), "config.yaml")
            .unwrap_err()
            .to_string()
    };
    assert!(wrong("tlsCipherSuites: TLS_A,TLS_B\n").contains("tlsCipherSuites is a text, and kubelet takes a list"));
    assert!(
        wrong("registerWithTaints: null\nevictionPressureTransitionPeriod: 300\n")
            .contains("evictionPressureTransitionPeriod is the number 300")
    );
    assert!(wrong("podPidsLimit: \"1000\"\n").contains("podPidsLimit is a text, and kubelet takes a whole number"));
    assert!(wrong("cpuCFSQuota: \"false\"\n").contains("cpuCFSQuota is a text, and kubelet takes a boolean"));
}
