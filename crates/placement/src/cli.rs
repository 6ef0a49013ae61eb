//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use stelia_allocator::evaluate::ScoringStrategy;

const AFTER_HELP: &str = "\
It answers POST /filter, /prioritize, /preempt and /bind as kube-scheduler calls an extender that is nodeCacheCapable, and GET /healthz,
/readyz, /leader, /metrics and /explain?pod=NAMESPACE/NAME. Of several instances the one that holds the Lease answers: /leader says
which it is, and --service leads a Service to it. /readyz says that an instance has read everything, so that it could take over.
Without certificates it listens on loopback only.

Examples:
  stelia-placement --kubeconfig /etc/kubernetes/stelia-placement.conf
  stelia-placement --listen 0.0.0.0:8890 --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt
  curl 'http://127.0.0.1:8890/explain?pod=default/vm-1'

Manual: stelia-placement(8)";

/// Places pods with a VM where their nodes would admit them, beside kube-scheduler.
///
/// For each node it decides what the node itself would, by the node's published object and by what is claimed there; a bind is such
/// a claim, written before the pod is bound.
#[derive(Debug, Parser)]
#[command(name = "stelia-placement", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// How the API server is reached; read again when it or a certificate that it names changes. Without it as kubectl does, or as a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where kube-scheduler finds it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8890")]
    pub listen: SocketAddr,
    /// The certificate, with those that vouch for it, PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Whose certificates clients must have, PEM; without it anybody who reaches the address is answered
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Where /healthz, /readyz, /leader and /metrics are answered too, without certificates
    #[arg(long, value_name = "ADDRESS")]
    pub probes: Option<SocketAddr>,
    /// The namespace of the Lease
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,
    /// The Lease's name
    #[arg(long, value_name = "NAME", default_value = "stelia-placement")]
    pub lease_name: String,
    /// This instance's name in the Lease, to which something random is added
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
    /// A Service without selector that is led to this instance while it places pods, by an EndpointSlice of its name in the Lease's namespace
    #[arg(long, value_name = "NAME", requires = "address")]
    pub service: Option<String>,
    /// This instance's address in that EndpointSlice; the port is --listen's
    #[arg(long, value_name = "IP", env = "POD_IP")]
    pub address: Option<IpAddr>,
    /// What the documents' score favours: MostAllocated, BalancedAllocation, LeastAllocated
    #[arg(long, value_name = "STRATEGY", default_value = "MostAllocated", value_parser = strategy)]
    pub scoring_strategy: ScoringStrategy,
    /// Print a completion script, and nothing else
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<Shell>,
}

fn strategy(text: &str) -> Result<ScoringStrategy, String> {
    ScoringStrategy::parse(text)
        .ok_or_else(|| "expected MostAllocated, BalancedAllocation or LeastAllocated".to_owned())
}

impl Cli {
    /// The completion script, as text.
    pub fn completion(shell: Shell) -> Vec<u8> {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Self::command(), "stelia-placement", &mut script);
        script
    }
}
