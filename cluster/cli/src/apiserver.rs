//! The API server: lists, and nothing else.

use std::path::Path;
use std::time::Duration;

use kube::core::Request;
use kube::core::params::{GetParams, ListParams};
use kube::{Client, Error};
use stelia_cpus::text::excerpt::with_causes;
use stelia_credentials::{ClientError, Source};

use crate::objects::Objects;

/// Objects of a page: an answer of a few megabytes.
const OBJECTS_PER_PAGE: u32 = 500;
/// How long the server may be silent in an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Pods that have not ended: only those use anything.
const ALIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";
const REPORTS: [&str; 2] = ["v1alpha2", "v1alpha1"];

/// A client by a kubeconfig; without one by $KUBECONFIG, ~/.kube/config or the pod's service account.
///
/// # Errors
/// The kubeconfig cannot be used.
pub fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ClientError> {
    let source = kubeconfig.map_or(Source::LikeKubectl, |path| Source::Kubeconfig(path.to_owned()));
    stelia_credentials::connect(&source, context, |config| config.read_timeout = Some(READ_TIMEOUT))
}

/// Reads nodes and their descriptions, and where they are wanted pods; of the nodes those with these labels.
///
/// # Errors
/// The server cannot be reached or refuses. Where it only refuses to list nodes, their labels and taints are not known, which is a
/// problem of the objects and no error.
pub async fn read(objects: &mut Objects, client: &Client, labels: Option<&str>, pods: bool) -> Result<(), String> {
    let of_nodes = ListParams {
        label_selector: labels.map(str::to_owned),
        ..ListParams::default()
    };
    match list(objects, client, "/api/v1/nodes", "Node", of_nodes).await {
        Ok(()) => {}
        Err(Error::Api(status)) if status.code == 403 && labels.is_none() => {
            objects.problems.add("", "list nodes", &status.message);
        }
        Err(cause) => return Err(format!("list nodes: {}", words(&cause))),
    }
    reports(objects, client).await?;
    if pods {
        let alive = ListParams::default().fields(ALIVE);
        let listed = list(objects, client, "/api/v1/pods", "Pod", alive).await;
        listed.map_err(|cause| format!("list pods: {}", words(&cause)))?;
    }
    Ok(())
}

/// Reads one pod; whether it is there.
///
/// # Errors
/// The server cannot be reached or refuses.
pub async fn read_pod(objects: &mut Objects, client: &Client, namespace: &str, name: &str) -> Result<bool, String> {
    let failed = |cause: &Error| format!("get pod {namespace}/{name}: {}", words(cause));
    let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
    let request = request.get(name, &GetParams::default());
    let request = request.map_err(|cause| failed(&Error::BuildRequest(cause)))?;
    match client.request_text(request).await {
        Ok(text) => {
            objects.read_page("", &text, "Pod");
            Ok(true)
        }
        Err(Error::Api(status)) if status.code == 404 => Ok(false),
        Err(cause) => Err(failed(&cause)),
    }
}

async fn reports(objects: &mut Objects, client: &Client) -> Result<(), String> {
    for version in REPORTS {
        let path = format!("/apis/topology.node.k8s.io/{version}/noderesourcetopologies");
        match list(objects, client, &path, "NodeResourceTopology", ListParams::default()).await {
            Ok(()) => return Ok(()),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(cause) => return Err(format!("list noderesourcetopologies: {}", words(&cause))),
        }
    }
    Err("the API server has no NodeResourceTopology: its CRD is not installed".to_owned())
}

/// Reads a list page by page. A list whose continuation has expired is read again, in one piece.
async fn list(objects: &mut Objects, client: &Client, path: &str, kind: &str, of: ListParams) -> Result<(), Error> {
    let mut page = of.clone().limit(OBJECTS_PER_PAGE);
    loop {
        let request = Request::new(path).list(&page).map_err(Error::BuildRequest)?;
        let text = match client.request_text(request).await {
            Err(Error::Api(status)) if status.code == 410 && page.limit.is_some() => {
                page = of.clone();
                continue;
            }
            answered => answered?,
        };
        match objects.read_page("", &text, kind) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(()),
        }
    }
}

/// An error with what caused it: the library's own words name its type only.
fn words(error: &Error) -> String {
    if let Error::Api(status) = error {
        return if status.reason.is_empty() {
            status.message.clone()
        } else {
            format!("{}: {}", status.reason, status.message)
        };
    }
    with_causes(error)
}

#[cfg(test)]
mod tests;
