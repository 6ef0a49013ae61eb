//! The answers to kubelet's calls.

use std::sync::Arc;
use std::time::Duration;

use crate::api::v1beta1::{AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse};
use crate::api::{BoxStream, DevicePlugin, Request, Response, Status, async_trait};
use futures_util::{Stream, stream};
use tokio::sync::watch;

use crate::allocate::{Available, allocate};
use crate::cdi::CdiFile;
use crate::offer::Offer;
use crate::required_files::{Paths, RequiredFiles};

/// How long Allocate waits for the daemon to admit VMs: a pod that is refused stays failed.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(3);

/// A process at the other end of a connection; `None` where it is in a PID namespace that this process does not see.
pub(crate) type Peer = Option<i32>;

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) offer: watch::Receiver<Offer>,
    pub(crate) paths: Paths,
    pub(crate) cdi: CdiFile,
    /// The peers of the open ListAndWatch streams.
    pub(crate) streams: watch::Sender<Vec<Peer>>,
    /// The kubelet that the plugin registered with; `None` before it has.
    pub(crate) kubelet: watch::Sender<Option<Peer>>,
}

impl Shared {
    pub(crate) fn new(offer: watch::Receiver<Offer>, paths: Paths, cdi: CdiFile) -> Arc<Self> {
        let (streams, kubelet) = (watch::Sender::new(Vec::new()), watch::Sender::new(None));
        Arc::new(Self {
            offer,
            paths,
            cdi,
            streams,
            kubelet,
        })
    }

    /// Whether kubelet has a ListAndWatch stream: it forgets the devices after a while without one. Where its process cannot be seen, the stream
    /// of any process that cannot be seen counts, because a kubelet without one is registered with again.
    pub(crate) fn kubelet_watches(&self) -> bool {
        let kubelet = *self.kubelet.borrow();
        kubelet.is_some_and(|kubelet| self.streams.borrow().contains(&kubelet))
    }

    /// Which files there are, as runtimes are told too. The flag says whether containers get the CDI name.
    fn files(&self) -> (RequiredFiles, bool) {
        let files = RequiredFiles::read(&self.paths);
        let named = self.cdi.write(&files.devices).unwrap_or_else(|error| {
            tracing::warn!("the container gets its devices without a CDI name: {error}");
            false
        });
        (files, named)
    }

    /// Waits until the daemon admits VMs, but not for long.
    async fn admission(&self) -> Offer {
        let mut offers = self.offer.clone();
        let admitted = async {
            loop {
                let offer = offers.borrow_and_update().clone();
                let is_admitted = offer.not_admitted.is_none() && !offer.is_uncertain;
                if is_admitted || offers.changed().await.is_err() {
                    return offer;
                }
            }
        };
        match tokio::time::timeout(ADMISSION_TIMEOUT, admitted).await {
            Ok(offer) => offer,
            Err(_) => self.offer.borrow().clone(),
        }
    }
}

/// An open ListAndWatch stream, which is counted while this value exists.
struct OpenStream {
    shared: Arc<Shared>,
    peer: Peer,
}

impl OpenStream {
    fn new(shared: Arc<Shared>, peer: Peer) -> Self {
        shared.streams.send_modify(|streams| streams.push(peer));
        Self { shared, peer }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.shared.streams.send_modify(|streams| {
            if let Some(index) = streams.iter().position(|peer| *peer == self.peer) {
                streams.swap_remove(index);
            }
        });
    }
}

/// The service of one connection.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Peer,
}

impl Service {
    /// A client that reads slowly misses lists that were replaced meanwhile, and gets the newest: none wait in memory.
    fn lists(&self) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static + use<> {
        let open = OpenStream::new(self.shared.clone(), self.peer);
        let offers = self.shared.offer.clone();
        stream::unfold((open, offers, None), |(open, mut offers, sent)| async move {
            let list = next_list(&mut offers, sent.as_ref()).await?;
            Some((Ok(list.clone()), (open, offers, Some(list))))
        })
    }
}

#[async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<BoxStream<ListAndWatchResponse>>, Status> {
        Ok(Response::new(Box::pin(self.lists())))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let offer = self.shared.admission().await;
        let (files, cdi) = self.shared.files();
        let available = Available {
            offer: &offer,
            paths: &self.shared.paths,
            files: &files,
            cdi,
        };
        let answer = allocate(&available, request.get_ref()).map_err(|refusal| {
            tracing::warn!("Allocate refused: {refusal}");
            refusal
        })?;
        Ok(Response::new(answer))
    }
}

/// Waits for a list that differs from the one that was sent. `None` when the program ends.
async fn next_list(
    offers: &mut watch::Receiver<Offer>,
    sent: Option<&ListAndWatchResponse>,
) -> Option<ListAndWatchResponse> {
    loop {
        let list = offers.borrow_and_update().list();
        if list.is_some() && sent != list.as_ref() {
            return list;
        }
        offers.changed().await.ok()?;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt, StreamExt};

    use super::*;

    fn offer(devices: u32, problem: Option<&str>) -> Offer {
        Offer {
            not_admitted: problem.map(str::to_owned),
            ..Offer::healthy(devices)
        }
    }

    fn list(devices: u32, problem: Option<&str>) -> ListAndWatchResponse {
        offer(devices, problem).list().unwrap()
    }

    fn service(first: Offer) -> (watch::Sender<Offer>, Service) {
        let (offers, offer) = watch::channel(first);
        let paths = Paths {
            runner: "/r".into(),
            socket_folder: "/s".into(),
            devices: Vec::new(),
        };
        let shared = Shared::new(offer, paths, CdiFile::new("/no/such/folder".into(), false));
        (offers, Service { shared, peer: Some(7) })
    }

    #[tokio::test]
    async fn a_list_is_sent_at_once_and_again_only_when_it_differs() {
        let (offers, service) = service(offer(2, None));
        let mut lists = pin!(service.lists());
        assert_eq!(lists.next().await.unwrap().unwrap(), list(2, None));
        assert!(lists.next().now_or_never().is_none());
        offers.send_replace(offer(2, Some("a")));
        assert_eq!(lists.next().await.unwrap().unwrap(), list(2, Some("a")));
        // Another reason is the same list, and so is what was taken back before it was read.
        offers.send_replace(offer(2, Some("b")));
        assert!(lists.next().now_or_never().is_none());
        offers.send_replace(offer(3, None));
        offers.send_replace(offer(2, Some("c")));
        assert!(lists.next().now_or_never().is_none());
        offers.send_replace(offer(1, Some("c")));
        assert_eq!(lists.next().await.unwrap().unwrap().devices.len(), 1);
        drop(offers);
        assert!(lists.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn allocate_waits_for_the_daemon_for_3_s() {
        let (offers, service) = service(offer(1, Some("it starts")));
        let begin = tokio::time::Instant::now();
        assert_eq!(service.shared.admission().await, offer(1, Some("it starts")));
        assert!(begin.elapsed() >= ADMISSION_TIMEOUT);
        let shared = service.shared.clone();
        let waiting = tokio::spawn(async move { shared.admission().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let uncertain = Offer {
            is_uncertain: true,
            ..offer(1, None)
        };
        offers.send_replace(uncertain);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        offers.send_replace(offer(1, None));
        assert_eq!(waiting.await.unwrap(), offer(1, None));
    }

    #[tokio::test]
    async fn kubelet_watches_while_it_has_a_stream() {
        let (_offers, service) = service(offer(1, None));
        let shared = service.shared.clone();
        let stream = service.lists();
        assert!(!shared.kubelet_watches());
        shared.kubelet.send_replace(Some(None));
        assert!(!shared.kubelet_watches());
        shared.kubelet.send_replace(Some(Some(7)));
        assert!(shared.kubelet_watches());
        let second = service.lists();
        drop(stream);
        assert!(shared.kubelet_watches());
        drop(second);
        assert!(!shared.kubelet_watches());
    }
}
