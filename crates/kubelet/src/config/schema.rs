//! The type of every key of a KubeletConfiguration `kubelet.config.k8s.io/v1beta1`, of Kubernetes 1.36.

/// What kubelet takes as a key's value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    Bool,
    Int32,
    Int64,
    UInt32,
    Float,
    /// A text such as `1m30s`. null is none, and kubelet does not take it.
    Duration,
    /// The same, and null.
    OptionalDuration,
    /// A text such as `1Gi`, or a number.
    Quantity,
    /// A text such as `5s`, or nanoseconds.
    TextOrNumber,
    List(&'static Kind),
    /// By names that the user chooses.
    Map(&'static Kind),
    Object(Fields),
}

/// Keys with their types.
pub(super) type Fields = &'static [(&'static str, Kind)];

use Kind::{
    Bool, Duration, Float, Int32, Int64, List, Map, Object, OptionalDuration, Quantity, Text, TextOrNumber, UInt32,
};

/// The keys of a KubeletConfiguration.
#[rustfmt::skip]
pub(super) const CONFIGURATION: Fields = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("enableServer", Bool),
    ("staticPodPath", Text),
    ("podLogsDir", Text),
    ("syncFrequency", Duration),
    ("fileCheckFrequency", Duration),
    ("httpCheckFrequency", Duration),
    ("staticPodURL", Text),
    ("staticPodURLHeader", Map(&List(&Text))),
    ("address", Text),
    ("port", Int32),
    ("readOnlyPort", Int32),
    ("tlsCertFile", Text),
    ("tlsPrivateKeyFile", Text),
    ("tlsCipherSuites", List(&Text)),
    ("tlsCurvePreferences", List(&Int32)),
    ("tlsMinVersion", Text),
    ("rotateCertificates", Bool),
    ("serverTLSBootstrap", Bool),
    ("authentication", Object(AUTHENTICATION)),
    ("authorization", Object(AUTHORIZATION)),
    ("registryPullQPS", Int32),
    ("registryBurst", Int32),
    ("imagePullCredentialsVerificationPolicy", Text),
    ("preloadedImagesVerificationAllowlist", List(&Text)),
    ("eventRecordQPS", Int32),
    ("eventBurst", Int32),
    ("enableDebuggingHandlers", Bool),
    ("enableContentionProfiling", Bool),
    ("healthzPort", Int32),
    ("healthzBindAddress", Text),
    ("oomScoreAdj", Int32),
    ("clusterDomain", Text),
    ("clusterDNS", List(&Text)),
    ("streamingConnectionIdleTimeout", Duration),
    ("nodeStatusUpdateFrequency", Duration),
    ("nodeStatusReportFrequency", Duration),
    ("nodeLeaseDurationSeconds", Int32),
    ("imageMinimumGCAge", Duration),
    ("imageMaximumGCAge", Duration),
    ("imageGCHighThresholdPercent", Int32),
    ("imageGCLowThresholdPercent", Int32),
    ("volumeStatsAggPeriod", Duration),
    ("kubeletCgroups", Text),
    ("systemCgroups", Text),
    ("cgroupRoot", Text),
    ("cgroupsPerQOS", Bool),
    ("cgroupDriver", Text),
    ("cpuManagerPolicy", Text),
    ("singleProcessOOMKill", Bool),
    ("cpuManagerPolicyOptions", Map(&Text)),
    ("cpuManagerReconcilePeriod", Duration),
    ("memoryManagerPolicy", Text),
    ("topologyManagerPolicy", Text),
    ("topologyManagerScope", Text),
    ("topologyManagerPolicyOptions", Map(&Text)),
    ("qosReserved", Map(&Text)),
    ("runtimeRequestTimeout", Duration),
    ("hairpinMode", Text),
    ("maxPods", Int32),
    ("podCIDR", Text),
    ("podPidsLimit", Int64),
    ("resolvConf", Text),
    ("runOnce", Bool),
    ("cpuCFSQuota", Bool),
    ("cpuCFSQuotaPeriod", OptionalDuration),
    ("nodeStatusMaxImages", Int32),
    ("maxOpenFiles", Int64),
    ("contentType", Text),
    ("kubeAPIQPS", Int32),
    ("kubeAPIBurst", Int32),
    ("serializeImagePulls", Bool),
    ("maxParallelImagePulls", Int32),
    ("evictionHard", Map(&Text)),
    ("evictionSoft", Map(&Text)),
    ("evictionSoftGracePeriod", Map(&Text)),
    ("evictionPressureTransitionPeriod", Duration),
    ("evictionMaxPodGracePeriod", Int32),
    ("evictionMinimumReclaim", Map(&Text)),
    ("mergeDefaultEvictionSettings", Bool),
    ("podsPerCore", Int32),
    ("enableControllerAttachDetach", Bool),
    ("protectKernelDefaults", Bool),
    ("makeIPTablesUtilChains", Bool),
    ("iptablesMasqueradeBit", Int32),
    ("iptablesDropBit", Int32),
    ("featureGates", Map(&Bool)),
    ("failSwapOn", Bool),
    ("memorySwap", Object(MEMORY_SWAP)),
    ("containerLogMaxSize", Text),
    ("containerLogMaxFiles", Int32),
    ("containerLogMaxWorkers", Int32),
    ("containerLogMonitorInterval", OptionalDuration),
    ("configMapAndSecretChangeDetectionStrategy", Text),
    ("systemReserved", Map(&Text)),
    ("kubeReserved", Map(&Text)),
    ("reservedSystemCPUs", Text),
    ("showHiddenMetricsForVersion", Text),
    ("systemReservedCgroup", Text),
    ("kubeReservedCgroup", Text),
    ("enforceNodeAllocatable", List(&Text)),
    ("allowedUnsafeSysctls", List(&Text)),
    ("volumePluginDir", Text),
    ("providerID", Text),
    ("kernelMemcgNotification", Bool),
    ("logging", Object(LOGGING)),
    ("enableSystemLogHandler", Bool),
    ("enableSystemLogQuery", Bool),
    ("shutdownGracePeriod", Duration),
    ("shutdownGracePeriodCriticalPods", Duration),
    ("shutdownGracePeriodByPodPriority", List(&Object(GRACE_PERIOD))),
    ("crashLoopBackOff", Object(CRASH_LOOP)),
    ("reservedMemory", List(&Object(RESERVATION))),
    ("enableProfilingHandler", Bool),
    ("enableDebugFlagsHandler", Bool),
    ("seccompDefault", Bool),
    ("memoryThrottlingFactor", Float),
    ("memoryReservationPolicy", Text),
    ("registerWithTaints", List(&Object(TAINT))),
    ("registerNode", Bool),
    ("tracing", Object(TRACING)),
    ("localStorageCapacityIsolation", Bool),
    ("containerRuntimeEndpoint", Text),
    ("imageServiceEndpoint", Text),
    ("failCgroupV1", Bool),
    ("userNamespaces", Object(USER_NAMESPACES)),
];

const AUTHENTICATION: Fields = &[
    ("x509", Object(X509)),
    ("webhook", Object(AUTHENTICATION_WEBHOOK)),
    ("anonymous", Object(ANONYMOUS)),
];
const X509: Fields = &[("clientCAFile", Text)];
const AUTHENTICATION_WEBHOOK: Fields = &[("enabled", Bool), ("cacheTTL", Duration)];
const ANONYMOUS: Fields = &[("enabled", Bool)];
const AUTHORIZATION: Fields = &[("mode", Text), ("webhook", Object(AUTHORIZATION_WEBHOOK))];
const AUTHORIZATION_WEBHOOK: Fields = &[("cacheAuthorizedTTL", Duration), ("cacheUnauthorizedTTL", Duration)];
const MEMORY_SWAP: Fields = &[("swapBehavior", Text)];
const GRACE_PERIOD: Fields = &[("priority", Int32), ("shutdownGracePeriodSeconds", Int64)];
const CRASH_LOOP: Fields = &[("maxContainerRestartPeriod", OptionalDuration)];
const RESERVATION: Fields = &[("numaNode", Int32), ("limits", Map(&Quantity))];
const USER_NAMESPACES: Fields = &[("idsPerPod", Int64)];
const TAINT: Fields = &[("key", Text), ("value", Text), ("effect", Text), ("timeAdded", Text)];
const TRACING: Fields = &[("endpoint", Text), ("samplingRatePerMillion", Int32)];
const LOGGING: Fields = &[
    ("format", Text),
    ("flushFrequency", TextOrNumber),
    ("verbosity", UInt32),
    ("vmodule", List(&Object(VMODULE))),
    (
        "options",
        Object(&[("text", Object(LOG_OUTPUT)), ("json", Object(LOG_OUTPUT))]),
    ),
];
const VMODULE: Fields = &[("filePattern", Text), ("verbosity", UInt32)];
const LOG_OUTPUT: Fields = &[("splitStream", Bool), ("infoBufferSize", Quantity)];

/// How kubelet looks for the field of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// In the file of `--config` a key is written exactly so.
    Exact,
    /// What drop-ins are merged into is read by Go's own JSON package, for which case does not matter.
    Ignored,
}

/// The field of a key.
pub(super) fn field(fields: Fields, key: &str, case: Case) -> Option<&'static (&'static str, Kind)> {
    let exact = fields.iter().find(|(name, _)| *name == key);
    match case {
        Case::Exact => exact,
        Case::Ignored => exact.or_else(|| fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(key))),
    }
}
