//! kubelet's side.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::api::transport::{Channel, serve_kubelet};
use crate::api::v1beta1::{Empty, ListAndWatchResponse, RegisterRequest};
use crate::api::{DevicePluginClient, KUBELET_SOCKET, Registration, Request, Response, Status, VERSION, async_trait};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::SOON;

/// What it got from plugins.
#[derive(Default)]
struct Got {
    plugin: Option<DevicePluginClient<Channel>>,
    registrations: usize,
    refusals: VecDeque<Status>,
}

struct Server {
    folder: PathBuf,
    got: Arc<Mutex<Got>>,
    lists: mpsc::UnboundedSender<ListAndWatchResponse>,
    streams: Mutex<JoinSet<()>>,
}

#[async_trait]
impl Registration for Server {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        assert_eq!(
            (request.version.as_str(), request.resource_name.as_str()),
            (VERSION, "stelia.io/vm")
        );
        let refusal = {
            let mut got = self.got.lock().unwrap();
            got.registrations += 1;
            got.refusals.pop_front()
        };
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let channel = Channel::connect(&self.folder.join(&request.endpoint)).await;
        let mut plugin = channel
            .map_err(|error| Status::unavailable(error.to_string()))?
            .plugin();
        let mut stream = plugin.list_and_watch(Empty {}).await?.into_inner();
        let lists = self.lists.clone();
        self.streams.lock().unwrap().spawn(async move {
            while let Ok(Some(list)) = stream.message().await {
                let _ = lists.send(list);
            }
        });
        self.got.lock().unwrap().plugin = Some(plugin);
        Ok(Response::new(Empty {}))
    }
}

/// A kubelet; it ends with this value.
pub(super) struct Kubelet {
    folder: PathBuf,
    got: Arc<Mutex<Got>>,
    sender: mpsc::UnboundedSender<ListAndWatchResponse>,
    lists: mpsc::UnboundedReceiver<ListAndWatchResponse>,
    serving: JoinHandle<()>,
}

impl Kubelet {
    pub(super) fn start(folder: &Path) -> Self {
        let (sender, lists) = mpsc::unbounded_channel();
        let got = Arc::new(Mutex::new(Got::default()));
        let serving = serve(folder, &got, &sender);
        Self {
            folder: folder.to_owned(),
            got,
            sender,
            lists,
            serving,
        }
    }

    /// Ends, with its connections. Its socket stays, as after a crash.
    pub(super) fn crash(&mut self) {
        self.serving.abort();
        self.got.lock().unwrap().plugin = None;
    }

    /// As kubelet starts: everything in the folder that is not its own is removed first.
    pub(super) fn start_again(&mut self) {
        for file in fs::read_dir(&self.folder).unwrap().flatten() {
            // The plugin may have removed its socket meanwhile.
            let _ = fs::remove_file(file.path());
        }
        self.serving = serve(&self.folder, &self.got, &self.sender);
    }

    pub(super) fn restart(&mut self) {
        self.crash();
        self.start_again();
    }

    /// The next registrations are refused.
    pub(super) fn refuse(&self, times: usize) {
        let refusal = Status::internal("no more plugins");
        self.got.lock().unwrap().refusals.extend(vec![refusal; times]);
    }

    pub(super) fn registrations(&self) -> usize {
        self.got.lock().unwrap().registrations
    }

    /// The plugin that registered last.
    pub(super) fn plugin(&self) -> DevicePluginClient<Channel> {
        self.got.lock().unwrap().plugin.clone().expect("a plugin registered")
    }

    /// Waits for a list like this. Lists before it are passed over.
    pub(super) async fn list(&mut self, is_it: impl Fn(&ListAndWatchResponse) -> bool) -> ListAndWatchResponse {
        let wait = async {
            loop {
                let list = self.lists.recv().await.unwrap();
                if is_it(&list) {
                    return list;
                }
            }
        };
        tokio::time::timeout(SOON, wait).await.expect("a list in time")
    }

    /// How many lists came that were not waited for.
    pub(super) fn lists_until_now(&mut self) -> usize {
        std::iter::from_fn(|| self.lists.try_recv().ok()).count()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn serve(folder: &Path, got: &Arc<Mutex<Got>>, lists: &mpsc::UnboundedSender<ListAndWatchResponse>) -> JoinHandle<()> {
    let listener = UnixListener::bind(folder.join(KUBELET_SOCKET)).unwrap();
    let server = Arc::new(Server {
        folder: folder.to_owned(),
        got: got.clone(),
        lists: lists.clone(),
        streams: Mutex::new(JoinSet::new()),
    });
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_kubelet(stream, server.clone()));
        }
    })
}
