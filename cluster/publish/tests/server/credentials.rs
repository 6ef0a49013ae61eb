//! Credentials that are not accepted. How they are read again is held in cluster/credentials.

use std::sync::{Arc, Mutex};

use serde_json::json;
use stelia_credentials::Credentials;
use stelia_publish::{Publisher, Reading};

use crate::support::*;

/// Gives a client whenever one is asked for, and counts.
struct Counted(Vec<kube::Client>, Arc<Mutex<Vec<bool>>>);

impl Credentials for Counted {
    fn renewed(&mut self, refused: bool) -> Option<Result<kube::Client, String>> {
        self.1.lock().unwrap().push(refused);
        refused.then(|| self.0.pop().ok_or("no such file".into()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_whose_token_expired_goes_on_with_the_new_one() {
    let expired = |_: &Seen| status(401, "Unauthorized", "Unauthorized", json!([]));
    let ((old, before), (new, after)) = (server(expired), server(healthy));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let publisher = Publisher::new(old, options()).with_credentials(Counted(vec![new], asked.clone()));
    let running = Running::of(publisher, Reading::of(told(6)));
    pass(0.5).await;
    assert_eq!((before.all().len(), after.objects().len()), (1, 1));
    assert_eq!(asked.lock().unwrap().iter().filter(|refused| **refused).count(), 1);
    assert!(running.status.borrow().problems.is_empty());
}
