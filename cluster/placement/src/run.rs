//! The program from its start to its end, and its tasks.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use stelia_credentials::{Files, Source};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::apiserver::endpoint::Endpoint;
use crate::apiserver::lease::LeaseClaim;
use crate::apiserver::{Api, follow};
use crate::cli::Cli;
use crate::extender::{Bounds, Paths, Service, Tls, TlsFiles, serve};
use crate::placer::{Feed, Placer, PlacerOptions, feeds};
use crate::reservations::SETTLE_TIMEOUT;

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// It cannot start.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    let files = cli.tls_cert.zip(cli.tls_key).map(|(certificate, key)| TlsFiles {
        certificate,
        key,
        clients: cli.tls_client_ca,
    });
    let tls = files.map(Tls::new).transpose();
    let tls = tls.context("the certificate cannot be used")?;
    let listen = cli.listen;
    if tls.is_none() && !listen.ip().is_loopback() {
        bail!("--listen {listen} is not on loopback: --tls-cert and --tls-key are needed");
    }
    let how = "find out how the API server is reached";
    let source = cli.kubeconfig.map_or(Source::LikeKubectl, Source::Kubeconfig);
    let (client, files) = Files::client(source).context(how)?;
    let api = Api::new(client).with_credentials(files);
    let listener = listener(listen).await?;
    let listens = listener.local_addr()?;
    let lease_claim = LeaseClaim {
        namespace: cli.lease_namespace,
        name: cli.lease_name,
        identity: identity(cli.identity)?,
    };
    let options = PlacerOptions {
        strategy: cli.scoring_strategy,
        settle: SETTLE_TIMEOUT,
    };
    let placer = Placer::new(api, options);
    info!("{} listens on {listens}", lease_claim.identity);

    let ended = CancellationToken::new();
    let tasks = start(&placer, &lease_claim, &ended);
    let endpoint = cli.service.zip(cli.address).map(|(service, address)| Endpoint {
        namespace: lease_claim.namespace.clone(),
        service,
        address,
        port: listens.port(),
    });
    if let Some(endpoint) = endpoint.clone() {
        let leads = placer.clone();
        spawn_until(&ended, async move {
            endpoint.lead_for_ever(leads.api(), || leads.ready().is_ok()).await;
        });
    }
    let bounds = Bounds::default();
    let service = |paths, tls| Service { paths, tls, bounds };
    if let Some(address) = cli.probes {
        let (listener, probes) = (self::listener(address).await?, service(Paths::Probes, None));
        // Probes are answered until the program ends.
        tokio::spawn(serve(placer.clone(), listener, probes, tasks.clone()));
    }
    let service = service(Paths::All, tls);
    let served = tokio::spawn(serve(placer.clone(), listener, service, ended.clone()));
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = tasks.cancelled() => {}
    }
    let is_outdated = tasks.is_cancelled();
    info!("ends");
    // Binds under way are finished before the Lease is given back: the next leader knows of them by their pods alone.
    ended.cancel();
    // Callers are then refused at once, instead of waiting for an address that is gone.
    if let Some(endpoint) = endpoint.filter(|_| placer.leadership().is_held())
        && let Err(failure) = endpoint.lead_nowhere(placer.api()).await
    {
        warn!("the Service still leads here: {failure}");
    }
    served.await.context("the service")?;
    if placer.reservation_counts().binding > 0 {
        warn!("the outcome of a bind is not known, so the Lease is not given back, and ends by itself");
    } else if let Err(failure) = lease_claim.release(placer.api(), placer.leadership()).await {
        warn!("the Lease is not given back, and ends by itself: {failure}");
    }
    tasks.cancel();
    if is_outdated {
        bail!("what was read is not certain any more, and is read again after a restart");
    }
    Ok(())
}

async fn listener(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("listen on {address}"))
}

/// Starts the tasks of the Lease, the watches and retries. The returned token ends all but the first, which `ended` ends.
pub fn start(placer: &Arc<Placer>, lease_claim: &LeaseClaim, ended: &CancellationToken) -> CancellationToken {
    let tasks = CancellationToken::new();
    start_tasks(placer, lease_claim.clone(), feeds(placer), ended, &tasks);
    tasks
}

/// Starts the tasks of [`start`] with these feeds. `ended` ends the task of the Lease, `stopped` the others; a feed cancels it if the cluster's data went
/// back in time.
pub(crate) fn start_tasks(
    placer: &Arc<Placer>,
    lease_claim: LeaseClaim,
    feeds: impl IntoIterator<Item = Feed>,
    ended: &CancellationToken,
    stopped: &CancellationToken,
) {
    let holder = placer.clone();
    // While the program ends, the Lease is not renewed; what is left of it suffices for the binds that are under way.
    spawn_until(ended, async move {
        lease_claim.hold(holder.api(), holder.leadership()).await
    });
    for feed in feeds {
        let (follower, stop) = (placer.clone(), stopped.clone());
        spawn_until(stopped, async move {
            let terms = follower.leadership().terms();
            if let Err(cause) = follow(follower.api(), feed.source, feed.follower, terms).await {
                error!("{cause}");
                stop.cancel();
            }
        });
    }
    let retrier = placer.clone();
    spawn_until(stopped, async move { retrier.retry_for_ever().await });
}

/// Runs a task until the token is cancelled.
fn spawn_until(ended: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(ended.clone().run_until_cancelled_owned(task));
}

/// The name of this process, which no other has, now or before.
fn identity(given: Option<String>) -> anyhow::Result<String> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).context("getrandom")?;
    let number = u64::from_le_bytes(random);
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = given.unwrap_or_else(host);
    Ok(format!("{name}_{number:016x}"))
}
