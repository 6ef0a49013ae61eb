//! The EndpointSlice by which the Service, which has no selector, leads to the leader. The leader writes it.
//!
//! Readiness does not mean leadership, but that an instance could take over: a drain or a rollout sees two ready instances, and replaces one at a time.

use std::net::IpAddr;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Api, JSON, ServerFailure, escape};

/// How often leadership is checked, and whether the EndpointSlice still matches it.
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// The name of the Service's port.
const PORT: &str = "extender";

/// Where this instance is reached, and by which Service.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub namespace: String,
    pub service: String,
    pub address: IpAddr,
    pub port: u16,
}

impl Endpoint {
    fn path(&self) -> String {
        let namespace = escape(&self.namespace);
        format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
    }

    /// Whether an endpoint of the slice is this instance's, and the only one.
    fn is_here(&self, slice: &Value) -> bool {
        let endpoints = slice["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        let [one] = endpoints else { return false };
        one["addresses"] == json!([self.address.to_string()])
            && slice["ports"][0]["port"] == self.port
            && slice["ports"][0]["name"] == PORT
            && one["conditions"]["ready"] != false
    }

    /// Leads the Service here. Returns whether the slice was written.
    ///
    /// # Errors
    /// [`ServerFailure::Conflict`]: another instance wrote it meanwhile.
    pub async fn lead_here(&self, api: &Api) -> Result<bool, ServerFailure> {
        let slice = self.slice(api).await?;
        if slice.as_ref().is_some_and(|slice| self.is_here(slice)) {
            return Ok(false);
        }
        let here = json!([{"addresses": [self.address.to_string()], "conditions": {"ready": true}}]);
        self.write(api, slice, here).await.map(|()| true)
    }

    /// Leads the Service nowhere if it led here. Returns whether the slice was written.
    ///
    /// # Errors
    /// As [`Self::lead_here`].
    pub async fn lead_nowhere(&self, api: &Api) -> Result<bool, ServerFailure> {
        match self.slice(api).await? {
            Some(slice) if self.is_here(&slice) => self.write(api, Some(slice), json!([])).await.map(|()| true),
            _ => Ok(false),
        }
    }

    /// `None`: there is none yet.
    async fn slice(&self, api: &Api) -> Result<Option<Value>, ServerFailure> {
        let own = format!("{}/{}", self.path(), escape(&self.service));
        match api.call(Method::GET, &own, None).await {
            Err(ServerFailure::Missing(_)) => Ok(None),
            slice => slice.map(Some),
        }
    }

    /// Writes the slice, which was read as this, with these endpoints.
    async fn write(&self, api: &Api, read: Option<Value>, endpoints: Value) -> Result<(), ServerFailure> {
        let (method, path) = match &read {
            Some(_) => (Method::PUT, format!("{}/{}", self.path(), escape(&self.service))),
            None => (Method::POST, self.path()),
        };
        let mut slice = read.unwrap_or_else(|| {
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"namespace": self.namespace, "name": self.service},
                "addressType": if self.address.is_ipv4() { "IPv4" } else { "IPv6" },
            })
        });
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = self.service.as_str().into();
        slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "stelia-placement".into();
        slice["endpoints"] = endpoints;
        slice["ports"] = json!([{"name": PORT, "port": self.port, "protocol": "TCP"}]);
        api.call(method, &path, Some((JSON, &slice))).await.map(drop)
    }

    /// Never ends: leads the Service here while this instance places pods. Afterwards it writes nothing, because the next leader does.
    pub async fn lead_for_ever(&self, api: &Api, places_pods: impl Fn() -> bool) {
        let service = format!("the Service {}/{}", self.namespace, self.service);
        let mut checked: Option<Instant> = None;
        loop {
            if !places_pods() {
                checked = None
            } else if checked.is_none_or(|checked| checked.elapsed() >= CHECK_PERIOD) {
                match self.lead_here(api).await {
                    Ok(written) => {
                        checked = Some(Instant::now());
                        if written {
                            info!("{service} leads here, to {}", self.address);
                        }
                    }
                    Err(failure) => warn!("{service} is not led here: {failure}"),
                }
            }
            tokio::time::sleep(PUBLISH_PERIOD).await;
        }
    }
}
