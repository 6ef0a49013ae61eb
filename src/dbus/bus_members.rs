//! The few members of `org.freedesktop.DBus` that clients made for a bus call on a peer-to-peer connection too.

use zbus::{fdo, interface};

/// The stand-in for the bus driver on the runner socket.
pub(super) struct Driver;

#[interface(name = "org.freedesktop.DBus")]
impl Driver {
    fn hello(&self) -> &str {
        ":1.1"
    }

    fn add_match(&self, rule: &str) {
        // Every signal goes to the one peer there is.
        let _ = rule;
    }

    fn remove_match(&self, rule: &str) {
        let _ = rule;
    }

    /// Must fail: a client that is told an owner listens only to signals sent under that name, and none are.
    fn get_name_owner(&self, name: &str) -> fdo::Result<String> {
        let shown: String = name.chars().take(64).collect();
        Err(fdo::Error::NameHasNoOwner(format!(
            "{shown}: this is a peer-to-peer connection"
        )))
    }

    fn name_has_owner(&self, name: &str) -> bool {
        name == stelia_api::BUS_NAME
    }

    fn list_names(&self) -> Vec<&str> {
        vec!["org.freedesktop.DBus", stelia_api::BUS_NAME]
    }
}
