//! systemd's interfaces on the bus, as far as they are called, and what its errors mean.

use zbus::{DBusError as _, ObjectPath, OwnedObjectPath, Variant, proxy};

pub(super) const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
pub(super) const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
pub(super) const ALREADY_SUBSCRIBED: &str = "org.freedesktop.systemd1.AlreadySubscribed";

pub(super) fn is_error<T>(result: &zbus::Result<T>, wanted: &str) -> bool {
    matches!(result, Err(zbus::Error::MethodError(name, ..)) if name.as_str() == wanted)
}

/// A row of `ListUnits`: name, description, load, active and sub state, whom it follows, object path, job id, type and path.
pub(super) type UnitRow = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

#[proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub(super) trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;
    #[zbus(no_reply)]
    fn unsubscribe(&self) -> zbus::Result<()>;
    fn get_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    #[allow(clippy::type_complexity)]
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, &[(&str, Variant<'_>)])],
    ) -> zbus::Result<OwnedObjectPath>;

    fn list_units_by_patterns(&self, states: &[&str], patterns: &[&str]) -> zbus::Result<Vec<UnitRow>>;
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn set_unit_properties(&self, name: &str, runtime: bool, properties: &[(&str, Variant<'_>)]) -> zbus::Result<()>;

    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
}

#[proxy(
    interface = "org.freedesktop.systemd1.Scope",
    default_service = "org.freedesktop.systemd1"
)]
pub(super) trait Scope {
    #[zbus(property(emits_changed_signal = "false"))]
    fn device_policy(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn device_allow(&self) -> zbus::Result<Vec<(String, String)>>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn control_group(&self) -> zbus::Result<String>;
}

#[proxy(
    interface = "org.freedesktop.systemd1.Unit",
    default_service = "org.freedesktop.systemd1"
)]
pub(super) trait Unit {
    #[zbus(property(emits_changed_signal = "false"))]
    fn active_state(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn job(&self) -> zbus::Result<(u32, OwnedObjectPath)>;
}

/// Why systemd did not do what it was asked.
#[derive(Debug)]
pub(super) enum BusFailure {
    /// systemd is not on the bus, or left it before it answered.
    Unreachable,
    /// systemd's own error.
    Refused(String),
}

/// The bus's errors if the recipient of a call is not running.
const UNREACHABLE_ERRORS: [&str; 3] = [
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
];

impl From<zbus::Error> for BusFailure {
    fn from(cause: zbus::Error) -> Self {
        let is_away = match &cause {
            zbus::Error::MethodError(name, ..) => UNREACHABLE_ERRORS.contains(&name.as_str()),
            zbus::Error::FDO(error) => UNREACHABLE_ERRORS.contains(&error.name().as_str()),
            _ => false,
        };
        if is_away {
            Self::Unreachable
        } else {
            Self::Refused(cause.to_string())
        }
    }
}
