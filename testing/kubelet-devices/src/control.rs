//! How the stand-in's commands reach the program that serves: a line of JSON each way on a socket.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::folder;
use crate::kubelet::Kubelet;
use crate::manager::Container;

/// What is asked.
#[derive(Debug, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Plugins, devices and allocations as JSON
    Show,
    /// Devices for a container, as JSON
    Allocate {
        /// The pod's UID
        pod: String,
        /// The container's name
        container: String,
        /// The resource's name
        resource: String,
        /// How many devices
        count: usize,
    },
    /// The pod has ended
    Free {
        /// The pod's UID
        pod: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Done(Value),
    Failed(String),
}

/// Serves `socket` until accepting fails.
pub async fn serve(kubelet: Arc<Kubelet>, socket: &Path) -> anyhow::Result<()> {
    let listener = folder::listen(socket)?;
    loop {
        let (stream, _) = listener
            .accept()
            .await
            .with_context(|| format!("accept on {}", socket.display()))?;
        let kubelet = Arc::clone(&kubelet);
        tokio::spawn(async move {
            if let Err(error) = answer(&kubelet, stream).await {
                eprintln!("a command: {error:#}");
            }
        });
    }
}

async fn answer(kubelet: &Kubelet, stream: UnixStream) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).await.context("read")?;
    let request: Request = serde_json::from_str(&line).with_context(|| format!("parse {line:?}"))?;
    let done = match request {
        Request::Show => kubelet.show(),
        Request::Allocate {
            pod,
            container,
            resource,
            count,
        } => {
            let container = Container {
                pod: &pod,
                name: &container,
            };
            match kubelet.allocate(container, &resource, count).await {
                Ok(answer) => serde_json::to_value(answer).context("write JSON"),
                Err(error) => Err(error),
            }
        }
        Request::Free { pod } => kubelet.free(&pod).map(|()| json!(null)),
    };
    let reply = match done {
        Ok(value) => Reply::Done(value),
        Err(error) => Reply::Failed(format!("{error:#}")),
    };
    let mut bytes = serde_json::to_vec(&reply).context("write JSON")?;
    bytes.push(b'\n');
    writer.write_all(&bytes).await.context("write")
}

/// Asks the program that serves.
pub async fn ask(socket: &Path, request: &Request) -> anyhow::Result<Value> {
    let connect = || format!("connect to {}", socket.display());
    let stream = UnixStream::connect(socket).await.with_context(connect)?;
    let (reader, mut writer) = stream.into_split();
    let mut bytes = serde_json::to_vec(request).context("write JSON")?;
    bytes.push(b'\n');
    writer.write_all(&bytes).await.context("write")?;
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).await.context("read")?;
    match serde_json::from_str(&line).with_context(|| format!("parse {line:?}"))? {
        Reply::Done(value) => Ok(value),
        Reply::Failed(error) => bail!(error),
    }
}
