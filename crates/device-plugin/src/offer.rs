//! What is offered to kubelet: how many devices, and whether they are healthy. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::v1beta1::{Device, ListAndWatchResponse};
use crate::api::{HEALTHY, UNHEALTHY};
use stelia_settings::DevicePluginSettings;
use tokio::time::Instant;

use crate::required_files::RequiredFiles;

/// The largest number of devices, as of the setting `device-plugin-vms`.
pub(crate) const MAX_DEVICES: u32 = 1024;

/// For how long devices stay as the daemon last said, after it or the system bus ended: a restart or an upgrade takes less.
pub(crate) const RESTART_PERIOD: Duration = Duration::from_secs(3);

/// For how long devices stay as the daemon last said, while it runs and does not answer: on a node under load an answer takes seconds.
pub(crate) const UNANSWERED_PERIOD: Duration = Duration::from_secs(15);

/// How long after the registration kubelet gets no list, if the daemon does not know the number of VMs by then.
pub(crate) const COUNT_TIMEOUT: Duration = Duration::from_secs(10);

const PREFIX: &str = "vm-";

/// What is known of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Why no VM would be admitted, as the daemon said last; `None` while one would be.
    pub(crate) problem: Option<String>,
    /// How many VMs the node has room for, as the daemon said last; `None` before it has.
    pub(crate) capacity: Option<u32>,
    /// The daemon answered since this program started.
    pub(crate) answered: bool,
    /// That it does not answer now; `None` while it does.
    pub(crate) silence: Option<Silence>,
}

/// The daemon does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Silence {
    pub(crate) since: Instant,
    /// From then on no device is healthy.
    pub(crate) until: Instant,
    pub(crate) reason: String,
}

impl Admission {
    /// What is known before the daemon was asked.
    pub(crate) fn unknown() -> Self {
        Self {
            problem: Some("steliad has not been asked yet".to_owned()),
            capacity: None,
            answered: false,
            silence: None,
        }
    }

    /// Why the daemon does not answer, once that is so for long enough.
    fn lasting_silence(&self, now: Instant) -> Option<&String> {
        let silence = self.silence.as_ref();
        let lasting = silence.filter(|silence| now >= silence.until);
        lasting.map(|silence| &silence.reason)
    }

    fn problem_at(&self, now: Instant) -> Option<&String> {
        self.lasting_silence(now).or(self.problem.as_ref())
    }

    /// This program has just started, and the daemon may still answer.
    fn is_pending(&self, now: Instant) -> bool {
        !self.answered && self.lasting_silence(now).is_none()
    }
}

/// All that an offer is made from.
pub(crate) struct OfferFacts<'a> {
    pub(crate) settings: &'a DevicePluginSettings,
    pub(crate) admission: &'a Admission,
    pub(crate) files: &'a RequiredFiles,
    /// The numbers of the devices that kubelet has allocated to pods.
    pub(crate) allocated: &'a BTreeSet<u32>,
    /// How many devices kubelet's record had when this program started: those of the time before a reboot.
    pub(crate) recorded: Option<u32>,
    /// When the plugin registered for the first time.
    pub(crate) registered: Option<Instant>,
    pub(crate) online_cpus: Option<u32>,
    pub(crate) now: Instant,
}

/// When an offer becomes another one although nothing happens.
pub(crate) fn next_change(admission: &Admission, registered: Option<Instant>, now: Instant) -> Option<Instant> {
    let silence = admission.silence.as_ref();
    let times = [
        silence.map(|silence| silence.until),
        registered.map(|registered| registered + COUNT_TIMEOUT),
    ];
    times.into_iter().flatten().filter(|time| *time > now).min()
}

impl OfferFacts<'_> {
    /// How many VMs there may be; `None` while the daemon may still say so, or that it admits them: a plugin that is restarted is to take no device
    /// away for a moment.
    fn count(&self) -> Option<u32> {
        if self.admission.is_pending(self.now) {
            return None;
        }
        let is_overdue = self.registered.is_some_and(|at| self.now >= at + COUNT_TIMEOUT);
        let known = self.settings.vms.or(self.admission.capacity).or(self.recorded);
        let count = known.or_else(|| self.online_cpus.filter(|_| is_overdue));
        count.map(|count| count.min(MAX_DEVICES))
    }
}

/// What kubelet is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// How many devices there are, healthy or not; `None` while that is not known.
    pub(crate) count: Option<u32>,
    /// The numbers of further devices: pods have them from a time when there were more.
    pub(crate) beyond: BTreeSet<u32>,
    /// Why steliad admits no VM.
    pub(crate) not_admitted: Option<String>,
    /// Which file is missing without which no VM starts.
    pub(crate) missing: Option<String>,
    /// The daemon does not answer, but did moments ago: the devices are as it said last, and Allocate waits.
    pub(crate) is_uncertain: bool,
}

impl Offer {
    pub(crate) fn new(facts: &OfferFacts<'_>) -> Self {
        let (admission, count) = (facts.admission, facts.count());
        Self {
            count,
            beyond: count.map_or_else(BTreeSet::new, |count| {
                facts.allocated.range(count..MAX_DEVICES).copied().collect()
            }),
            not_admitted: admission.problem_at(facts.now).cloned(),
            missing: facts.files.problem.clone(),
            is_uncertain: admission.silence.is_some(),
        }
    }

    /// So many healthy devices.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn healthy(count: u32) -> Self {
        Self {
            count: Some(count),
            beyond: BTreeSet::new(),
            not_admitted: None,
            missing: None,
            is_uncertain: false,
        }
    }

    /// Why no device may be allocated.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.not_admitted.as_deref().or(self.missing.as_deref())
    }

    /// How many devices kubelet is told of; `None` while that is not known.
    pub(crate) fn devices(&self) -> Option<usize> {
        self.count.map(|count| count as usize + self.beyond.len())
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..self.count.unwrap_or(0)).chain(self.beyond.iter().copied())
    }

    /// All devices, in the order of their numbers; `None` while the number is not known: kubelet is to take no pod's device away because of that.
    pub(crate) fn list(&self) -> Option<ListAndWatchResponse> {
        let health = match self.problem() {
            None => HEALTHY,
            Some(_) => UNHEALTHY,
        };
        let devices = self.numbers().map(|number| Device {
            id: id(number),
            health: health.to_owned(),
            topology: None,
        });
        self.count.map(|_| ListAndWatchResponse {
            devices: devices.collect(),
        })
    }

    /// Whether one of the devices has this ID.
    pub(crate) fn has(&self, given: &str) -> bool {
        let count = self.count.unwrap_or(0);
        number(given).is_some_and(|number| number < count || self.beyond.contains(&number))
    }
}

/// The ID of a device. kubelet keeps it in its checkpoint, so it never changes.
fn id(number: u32) -> String {
    format!("{PREFIX}{number}")
}

/// The number of the device that has this ID; `None` if no device ever has.
pub(crate) fn number(given: &str) -> Option<u32> {
    let number = given.strip_prefix(PREFIX)?.parse().ok()?;
    (number < MAX_DEVICES && id(number) == given).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Situation {
        settings: DevicePluginSettings,
        admission: Admission,
        files: RequiredFiles,
        allocated: BTreeSet<u32>,
        recorded: Option<u32>,
        registered: Option<Instant>,
        now: Instant,
    }

    /// The daemon answers and admits VMs, and nothing else is known.
    fn situation() -> Situation {
        Situation {
            settings: DevicePluginSettings::default(),
            admission: Admission {
                problem: None,
                capacity: None,
                answered: true,
                silence: None,
            },
            files: RequiredFiles::default(),
            allocated: BTreeSet::new(),
            recorded: None,
            registered: None,
            now: Instant::now(),
        }
    }

    impl Situation {
        fn facts(&self) -> OfferFacts<'_> {
            OfferFacts {
                settings: &self.settings,
                admission: &self.admission,
                files: &self.files,
                allocated: &self.allocated,
                recorded: self.recorded,
                registered: self.registered,
                online_cpus: Some(16),
                now: self.now,
            }
        }

        fn offer(&self) -> Offer {
            Offer::new(&self.facts())
        }

        fn next_change(&self) -> Option<Instant> {
            next_change(&self.admission, self.registered, self.now)
        }

        fn ids(&self) -> Vec<String> {
            let list = self.offer().list().unwrap();
            list.devices.into_iter().map(|device| device.id).collect()
        }
    }

    #[test]
    fn the_setting_or_else_the_nodes_room_is_the_number_of_devices() {
        let mut known = situation();
        known.admission.capacity = Some(8);
        assert_eq!(known.offer(), Offer::healthy(8));
        known.settings.vms = Some(3);
        assert_eq!(known.offer(), Offer::healthy(3));
        // What kubelet's record had at the start counts only until the daemon knows the number.
        (known.settings.vms, known.recorded) = (None, Some(12));
        assert_eq!(known.offer(), Offer::healthy(8));
        known.admission.capacity = Some(4096);
        assert_eq!(known.offer().devices(), Some(1024));
    }

    #[test]
    fn while_the_number_is_not_known_there_is_no_list_until_10_s_after_the_registration() {
        let mut known = situation();
        let start = known.now;
        known.now = start + Duration::from_secs(100);
        assert_eq!((known.offer().list(), known.next_change()), (None, None));
        assert!(!known.offer().has("vm-0"));
        known.registered = Some(known.now);
        let overdue = known.now + COUNT_TIMEOUT;
        assert_eq!((known.offer().list(), known.next_change()), (None, Some(overdue)));
        known.recorded = Some(12);
        assert_eq!(known.offer().devices(), Some(12));
        (known.now, known.recorded) = (overdue, None);
        assert_eq!(known.offer().devices(), Some(16));
        known.admission.capacity = Some(14);
        assert_eq!(known.offer().devices(), Some(14));
    }

    #[test]
    fn a_device_that_a_pod_has_stays_when_the_number_becomes_smaller() {
        let mut known = situation();
        known.admission.capacity = Some(2);
        known.allocated = [0, 5, 7].into();
        assert_eq!(known.ids(), ["vm-0", "vm-1", "vm-5", "vm-7"]);
        let offer = known.offer();
        assert!(offer.has("vm-5") && !offer.has("vm-6") && offer.devices() == Some(4));
        known.allocated = [5].into();
        assert_eq!(known.ids(), ["vm-0", "vm-1", "vm-5"]);
        known.allocated.clear();
        assert_eq!(known.ids(), ["vm-0", "vm-1"]);
        known.admission.capacity = Some(4096);
        known.allocated = [3].into();
        assert_eq!(known.ids().len(), 1024);
    }

    #[test]
    fn all_devices_are_healthy_or_none_is() {
        let mut known = situation();
        known.settings.vms = Some(2);
        let healthy = known.offer().list().unwrap();
        assert_eq!(known.ids(), ["vm-0", "vm-1"]);
        assert!(healthy.devices.iter().all(|device| device.health == HEALTHY));
        known.files.problem = Some("/dev/kvm does not exist".to_owned());
        assert_eq!(known.offer().problem(), Some("/dev/kvm does not exist"));
        known.admission.problem = Some("steliad does not run".to_owned());
        assert_eq!(known.offer().problem(), Some("steliad does not run"));
        let unhealthy = known.offer().list().unwrap();
        assert!(unhealthy.devices.iter().all(|device| device.health == UNHEALTHY));
        assert_eq!(unhealthy.devices.len(), 2);
    }

    #[test]
    fn a_daemon_that_is_away_for_a_short_time_changes_no_list() {
        let mut known = situation();
        known.settings.vms = Some(1);
        let (since, healthy) = (known.now, known.offer().list());
        let reason = "steliad does not run".to_owned();
        let until = since + RESTART_PERIOD;
        known.admission.silence = Some(Silence { since, until, reason });
        assert_eq!(known.offer().list(), healthy);
        assert!(known.offer().is_uncertain);
        assert_eq!(known.next_change(), Some(until));
        known.now = until;
        assert_eq!(known.offer().problem(), Some("steliad does not run"));
        // What it said last was no reason to be healthy.
        known.now = since;
        known.admission.problem = Some("a problem".to_owned());
        assert_eq!(known.offer().problem(), Some("a problem"));
    }

    #[test]
    fn there_is_no_list_before_the_daemon_has_answered_unless_its_silence_lasts() {
        let mut known = situation();
        known.settings.vms = Some(1);
        known.admission = Admission::unknown();
        assert_eq!(known.offer().list(), None);
        let (since, reason) = (known.now, "steliad does not run".to_owned());
        let until = since + RESTART_PERIOD;
        known.admission.silence = Some(Silence { since, until, reason });
        assert_eq!(known.offer().list(), None);
        known.now = until;
        assert_eq!(known.offer().devices(), Some(1));
        assert_eq!(known.offer().problem(), Some("steliad does not run"));
    }

    #[test]
    fn only_an_id_that_was_listed_is_one() {
        let offer = Offer::healthy(11);
        assert!(offer.list().unwrap().devices.iter().all(|device| offer.has(&device.id)));
        for wrong in [
            "",
            "vm-",
            "vm-11",
            "vm-01",
            "vm-+1",
            "vm--1",
            "vm-1 ",
            "VM-1",
            "1",
            "vm-99999999999",
        ] {
            assert!(!offer.has(wrong), "{wrong:?}");
        }
    }
}
