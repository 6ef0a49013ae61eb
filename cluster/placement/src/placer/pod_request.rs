//! What a pod requests, by the document that the scheduler or the API server gives.

use serde_json::Value;
use stelia_placement_rules::request::{Request, RequestError};

use super::Placer;
use crate::apiserver::parse;

/// Why a pod cannot be placed anywhere.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    #[error("it is not JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl Placer {
    /// What a pod requests; `None` if it gets no CPUs of its own and has no VM. `pod` is parsed from the same document.
    ///
    /// # Errors
    /// It fits nowhere.
    pub(crate) fn request(
        &self,
        document: &Value,
        pod: Option<&parse::ParsedPod>,
    ) -> Result<Option<Request>, RequestError> {
        if pod.is_some_and(|pod| !pod.may_own_cpus) {
            return Ok(None);
        }
        Request::of_pod(document, self.options.strategy).map(Some)
    }

    /// A pod that the scheduler asks about, JSON as the API server gives it, and its request.
    ///
    /// # Errors
    /// It fits nowhere.
    pub fn pod_request(&self, pod: &str) -> Result<(Option<parse::ParsedPod>, Option<Request>), PodError> {
        let document = serde_json::from_str(pod)?;
        let pod = parse::pod_of(&document);
        let request = self.request(&document, pod.as_ref())?;
        Ok((pod, request))
    }
}
