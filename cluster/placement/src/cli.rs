//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use stelia_koordinator::allocator::evaluate::ScoringStrategy;

const AFTER_HELP: &str = "\
kube-scheduler calls POST /filter, /prioritize, /preempt and /bind of this
program as an extender that is nodeCacheCapable. GET /healthz, /readyz, /leader
and /metrics are answered too.

Only the replica that holds the Lease answers kube-scheduler. /leader tells
whether a replica is the leader, and --service directs a Service to the leader.
/readyz tells whether a replica has read everything and could take over.
Without certificates, the program listens on loopback only.

Examples:
  stelia-placement --kubeconfig /etc/kubernetes/stelia-placement.conf
  stelia-placement --listen 0.0.0.0:8890 --tls-cert tls.crt \\
      --tls-key tls.key --tls-client-ca ca.crt

Manual: stelia-placement(8)";

/// Places pods with a VM on nodes that would admit them, as an extender of kube-scheduler.
///
/// Decides for each node what the node itself would decide, from the node's published object and the claims on the node. A pod's binding
/// is its claim.
#[derive(Debug, Parser)]
#[command(name = "stelia-placement", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// The kubeconfig. It is read again when it or a file that it names changes. Default: as for kubectl, or the pod's service account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address on which requests of kube-scheduler are answered
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8890")]
    pub listen: SocketAddr,
    /// Server certificate with its chain, PEM. It is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the server certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Certificates of the CAs whose clients are answered, PEM. Without it, every client that reaches the address is answered
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Another address for /healthz, /readyz, /leader and /metrics, without certificates
    #[arg(long, value_name = "ADDRESS")]
    pub probes: Option<SocketAddr>,
    /// Namespace of the Lease
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,
    /// Name of the Lease
    #[arg(long, value_name = "NAME", default_value = "stelia-placement")]
    pub lease_name: String,
    /// Name of this replica in the Lease, to which a random suffix is added
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
    /// Service without a selector that is directed to this replica while it is the leader, by an EndpointSlice of the Service's name in the namespace of the Lease
    #[arg(long, value_name = "NAME", requires = "address")]
    pub service: Option<String>,
    /// Address of this replica in the EndpointSlice. The port is that of --listen
    #[arg(long, value_name = "IP", env = "POD_IP")]
    pub address: Option<IpAddr>,
    /// What Koordinator's part of the score favours: MostAllocated, BalancedAllocation or LeastAllocated
    #[arg(long, value_name = "STRATEGY", default_value = "MostAllocated", value_parser = strategy)]
    pub scoring_strategy: ScoringStrategy,
    /// Print a completion script and exit
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
