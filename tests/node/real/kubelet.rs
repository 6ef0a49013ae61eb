//! steliad beside kubelet itself, with static pods.
