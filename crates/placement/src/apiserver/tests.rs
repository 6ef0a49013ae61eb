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
