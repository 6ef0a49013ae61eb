use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use test_apiserver::Server;

use super::*;

/// Another server's client once the first one has answered 401.
struct Other {
    server: Server,
    refusals: Arc<AtomicUsize>,
}

impl Credentials for Other {
    fn renewed(&mut self, refused: bool) -> Option<Result<Client, String>> {
        if !refused {
            return None;
        }
        match self.refusals.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Err("the file is being written".to_owned())),
            _ => Some(Ok(Client::new(self.server.clone(), "default"))),
        }
    }
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_read_again() {
    let (strict, open) = (Server::new().unwrap(), Server::new().unwrap());
    strict.accept(Some(vec!["another".to_owned()]));
    open.put("", "pods", json!({"metadata": {"namespace": "vms", "name": "vm"}}));
    let refusals = Arc::new(AtomicUsize::new(0));
    let credentials = Other {
        server: open,
        refusals: refusals.clone(),
    };
    let api = Api::new(Client::new(strict, "default")).with_credentials(credentials);
    // Where they cannot be read the old ones are tried on.
    for tried in [0, 1] {
        let failed = api.pod("vms", "vm").await.unwrap_err();
        assert!(matches!(failed, Failure::Refused(401, _)), "{failed:?}");
        assert_eq!(refusals.load(Ordering::Relaxed), tried);
    }
    for _ in 0..2 {
        let pod = api.pod("vms", "vm").await.unwrap();
        assert_eq!(pod["metadata"]["name"], "vm");
    }
    assert_eq!(refusals.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_service_leads_to_whoever_wrote_the_slice_last() {
    let server = Server::new().unwrap();
    let api = Api::new(Client::new(server.clone(), "default"));
    let endpoint = |address: &str| endpoint::Endpoint {
        namespace: "stelia-system".to_owned(),
        service: "stelia-placement".to_owned(),
        address: address.parse().unwrap(),
        port: 8890,
    };
    let (one, other) = (endpoint("10.0.0.1"), endpoint("10.0.0.2"));
    let slice = || {
        let group = "discovery.k8s.io";
        server.object(group, "endpointslices", "stelia-system", "stelia-placement")
    };
    // Whoever does not lead leaves it alone.
    assert_eq!((one.lead(&api, false).await, slice()), (Ok(false), None));
    assert_eq!(one.lead(&api, true).await, Ok(true));
    assert_eq!(one.lead(&api, true).await, Ok(false));
    let written = slice().unwrap();
    let labels = &written["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/service-name"], "stelia-placement");
    assert_eq!(labels["endpointslice.kubernetes.io/managed-by"], "stelia-placement");
    assert_eq!(written["addressType"], "IPv4");
    let ports = json!([{"name": "extender", "port": 8890, "protocol": "TCP"}]);
    assert_eq!(written["ports"], ports);

    assert_eq!(other.lead(&api, true).await, Ok(true));
    assert_eq!(one.lead(&api, false).await, Ok(false));
    let endpoints = json!([{"addresses": ["10.0.0.2"], "conditions": {"ready": true}}]);
    assert_eq!(slice().unwrap()["endpoints"], endpoints);
    // Ended, it leads nowhere, so that whoever calls is refused at once.
    assert_eq!(other.lead(&api, false).await, Ok(true));
    assert_eq!(slice().unwrap()["endpoints"], json!([]));
}

/// It follows whether this instance places pods, and repairs what somebody else wrote.
#[tokio::test(start_paused = true)]
async fn the_service_is_led_here_for_as_long_as_this_instance_places_pods() {
    let server = Server::new().unwrap();
    let api = Api::new(Client::new(server.clone(), "default"));
    let endpoint = endpoint::Endpoint {
        namespace: "n".to_owned(),
        service: "s".to_owned(),
        address: "fd00::1".parse().unwrap(),
        port: 1,
    };
    let (places, is) = tokio::sync::watch::channel(false);
    tokio::spawn(async move { endpoint.lead_for_ever(&api, || *is.borrow()).await });
    let slice = || server.object("discovery.k8s.io", "endpointslices", "n", "s");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(slice().is_none());
    places.send_replace(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut written = slice().unwrap();
    assert_eq!(
        (&written["addressType"], &written["endpoints"][0]["addresses"][0]),
        (&json!("IPv6"), &json!("fd00::1"))
    );
    written["endpoints"] = json!([]);
    server.put("discovery.k8s.io", "endpointslices", written);
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(slice().unwrap()["endpoints"][0]["addresses"][0], "fd00::1");
}
