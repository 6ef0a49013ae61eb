//! An author who lets pods pass for others, and rewrites what others were told.

use std::sync::Arc;

use super::load;
use super::run::{PODS, World};

impl World {
    pub(super) async fn hostile_author(self: Arc<Self>) {
        let mut random = self.state().random.fork();
        while !self.state().over {
            tokio::time::sleep(random.between(100, 500)).await;
            let mut bound = self.server.objects(PODS.0, PODS.1);
            bound.retain(|pod| pod["spec"]["nodeName"].is_string());
            if bound.is_empty() {
                continue;
            }
            let mut victim = random.of(&bound).clone();
            let uid = {
                let mut state = self.state();
                state.made += 1;
                load::uid(state.made, 2)
            };
            let mut forged = load::pod("forged", &uid, 1, false);
            forged["metadata"]["namespace"] = "tenant".into();
            forged["metadata"]["annotations"]["kubernetes.io/config.mirror"] = victim["metadata"]["uid"].clone();
            forged["spec"]["nodeName"] = random.of(&self.names).clone().into();
            self.server.put(PODS.0, PODS.1, forged);
            let told = r#"{"cpuset":"0-31"}"#;
            victim["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"] = told.into();
            self.server.put(PODS.0, PODS.1, victim);
            tokio::time::sleep(random.between(100, 500)).await;
            self.server.remove(PODS.0, PODS.1, "tenant", "forged");
        }
    }
}
