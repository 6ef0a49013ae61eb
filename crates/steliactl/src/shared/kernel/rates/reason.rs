//! What disturbs a thread or a VM, in words.

use super::{HIGH_DELAY_PERCENT, HIGH_FORCED_IDLE_PERCENT, HIGH_THROTTLED_PERCENT, Rates, VcpuRates};

/// The kernel's own bound threads preempt an isolated vCPU now and then; above this many times a second it is something else.
const HIGH_PREEMPTIONS_PER_SECOND: f64 = 10.0;

/// What disturbs a thread, each for a column and in words.
fn disturbances(rates: &Rates) -> impl Iterator<Item = (String, String)> {
    let much = |value: Option<f64>, much: f64| value.filter(|value| *value >= much);
    let waits = much(rates.delay_percent, HIGH_DELAY_PERCENT).map(|percent| {
        (
            format!("waits {percent:.0} %"),
            format!("waits {percent:.0} % for a CPU"),
        )
    });
    let preempted = much(rates.involuntary_per_second, HIGH_PREEMPTIONS_PER_SECOND).map(|times| {
        let text = format!("preempted {times:.0}/s");
        (text.clone(), text)
    });
    let idles = much(rates.forced_idle_percent, HIGH_FORCED_IDLE_PERCENT).map(|percent| {
        let text = format!("keeps siblings idle {percent:.0} % (core scheduling)");
        (format!("core sched {percent:.0} %"), text)
    });
    waits.into_iter().chain(preempted).chain(idles)
}

/// `None`: nothing disturbs the thread much.
pub(super) fn of_thread(rates: &Rates) -> Option<String> {
    joined(disturbances(rates).map(|(_, text)| text), ", ")
}

/// For a column; empty where nothing disturbs the thread much.
pub(super) fn note(rates: &Rates) -> String {
    disturbances(rates).next().map(|(note, _)| note).unwrap_or_default()
}

fn throttled(percent: Option<f64>) -> Option<String> {
    let much = percent.filter(|percent| *percent >= HIGH_THROTTLED_PERCENT)?;
    Some(format!("throttled {much:.0} %"))
}

/// The thread that is disturbed most.
fn worst(vcpus: &[VcpuRates]) -> Option<&VcpuRates> {
    let of = |vcpu: &VcpuRates, rate: fn(&Rates) -> Option<f64>| rate(&vcpu.rates).unwrap_or(0.0);
    vcpus.iter().filter(|vcpu| vcpu.reason.is_some()).max_by(|a, b| {
        let delay = |vcpu| of(vcpu, |rates| rates.delay_percent);
        let preempted = |vcpu| of(vcpu, |rates| rates.involuntary_per_second);
        delay(a)
            .total_cmp(&delay(b))
            .then(preempted(a).total_cmp(&preempted(b)))
    })
}

/// What was measured of a VM, for a column.
pub(super) fn note_of_instance(throttled_percent: Option<f64>, vcpus: &[VcpuRates]) -> String {
    let of_worst = || worst(vcpus).map(|vcpu| vcpu.note.clone());
    throttled(throttled_percent).or_else(of_worst).unwrap_or_default()
}

/// What the daemon says, then what was measured: of its threads, the one that is disturbed most.
pub(super) fn of_instance(reported: &[String], throttled_percent: Option<f64>, vcpus: &[VcpuRates]) -> Option<String> {
    let throttled = throttled(throttled_percent).map(|text| format!("{text} of the time"));
    let worst = worst(vcpus).and_then(|vcpu| Some(format!("vCPU {} {}", vcpu.name, vcpu.reason.as_ref()?)));
    let measured = throttled.into_iter().chain(worst);
    joined(reported.iter().cloned().chain(measured), "; ")
}

/// `None` where there are no parts.
fn joined(parts: impl Iterator<Item = String>, between: &str) -> Option<String> {
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join(between))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(delay: f64, involuntary: f64) -> Rates {
        Rates {
            delay_percent: Some(delay),
            involuntary_per_second: Some(involuntary),
            ..Rates::default()
        }
    }

    fn vcpu(name: &str, delay: f64, involuntary: f64) -> VcpuRates {
        let rates = rates(delay, involuntary);
        VcpuRates {
            name: name.to_owned(),
            rates,
            note: note(&rates),
            reason: of_thread(&rates),
            ..VcpuRates::default()
        }
    }

    #[test]
    fn a_thread_is_disturbed_from_a_bar_on() {
        let reason = |delay, involuntary| of_thread(&rates(delay, involuntary));
        assert_eq!(reason(0.99, 9.9), None);
        assert_eq!(reason(1.0, 0.0).unwrap(), "waits 1 % for a CPU");
        assert_eq!(reason(0.0, 30.2).unwrap(), "preempted 30/s");
        assert_eq!(reason(12.3, 10.0).unwrap(), "waits 12 % for a CPU, preempted 10/s");
        assert_eq!(of_thread(&Rates::default()), None);
        let idles = Rates {
            forced_idle_percent: Some(40.0),
            ..rates(0.0, 0.0)
        };
        assert_eq!(of_thread(&idles).unwrap(), "keeps siblings idle 40 % (core scheduling)");
    }

    #[test]
    fn a_vm_has_what_the_daemon_says_first_and_its_worst_thread_last() {
        let vcpus = [vcpu("0", 3.0, 0.0), vcpu("1", 12.0, 0.0), vcpu("2", 0.0, 99.0)];
        let told = ["vCPUs not attached".to_owned()];
        assert_eq!(
            of_instance(&told, Some(5.0), &vcpus).unwrap(),
            "vCPUs not attached; throttled 5 % of the time; vCPU 1 waits 12 % for a CPU"
        );
        assert_eq!(
            of_instance(&[], Some(0.9), &[vcpu("0", 0.5, 20.0), vcpu("1", 0.5, 40.0)]).unwrap(),
            "vCPU 1 preempted 40/s"
        );
        assert_eq!(of_instance(&[], None, &[vcpu("0", 0.9, 9.0)]), None);
        assert_eq!(note_of_instance(Some(5.0), &vcpus), "throttled 5 %");
        assert_eq!(note_of_instance(None, &vcpus), "waits 12 %");
    }
}
