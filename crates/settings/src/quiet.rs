//! What is done for the CPUs of VMs besides keeping tasks off them.

use std::collections::BTreeMap;

use stelia_cpus::text::named;

use crate::{CacheLimits, LatencyLevel, is_name};

/// The settings of that.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct QuietSettings {
    pub irq_steering: IrqSteering,
    pub vfio_irqs: VfioIrqs,
    /// The most that a pod may order of wake-up latency.
    pub latency_allowed: LatencyLevel,
    /// Microseconds of [`LatencyLevel::Low`].
    pub latency_low_us: u32,
    /// cpufreq's governor for the CPUs of VMs; `None`: what they have.
    pub cpu_governor: Option<String>,
    /// Each VM's cache and memory bandwidth is counted, where the hardware does.
    pub cache_monitoring: bool,
    /// By name: the classes that a VM may be in.
    pub cache_classes: BTreeMap<String, CacheLimits>,
}

impl Default for QuietSettings {
    fn default() -> Self {
        Self {
            irq_steering: IrqSteering::Shared,
            vfio_irqs: VfioIrqs::Float,
            latency_allowed: LatencyLevel::Default,
            latency_low_us: 20,
            cpu_governor: None,
            cache_monitoring: false,
            cache_classes: BTreeMap::new(),
        }
    }
}

named! {
    /// Where device interrupts go.
    pub enum IrqSteering {
        /// Away from the CPUs of VMs.
        Shared = "shared",
        /// Where they go already: nothing is written.
        Off = "off",
    }
}

named! {
    /// Where the interrupts of a VM's own VFIO devices go.
    pub enum VfioIrqs {
        /// Where those of every other device go.
        Float = "float",
        /// To the VM's own CPUs.
        Own = "own",
    }
}

/// What a pod orders for its VM's CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct QuietRequest {
    pub latency: LatencyLevel,
    /// A `[cache-class.NAME]`; `None`: as the node is.
    pub cache_class: Option<String>,
}

/// Nothing is ordered. Records leave it out, so it is not what a setting says.
impl QuietRequest {
    /// As `latency=low cache-class=gold`; empty where nothing is ordered.
    pub fn text(&self) -> String {
        let latency = (self.latency != LatencyLevel::Default).then(|| format!("{LATENCY}{}", self.latency.name()));
        let class = self.cache_class.as_ref().map(|class| format!("{CLASS}{class}"));
        let words: Vec<String> = latency.into_iter().chain(class).collect();
        words.join(" ")
    }

    /// `None` where it is not such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut request = Self::default();
        for word in text.split_whitespace() {
            if let Some(level) = word.strip_prefix(LATENCY) {
                request.latency = LatencyLevel::parse(level)?;
            } else {
                let class = word.strip_prefix(CLASS).filter(|class| is_name(class))?;
                request.cache_class = Some(class.to_owned());
            }
        }
        Some(request)
    }
}

const LATENCY: &str = "latency=";
const CLASS: &str = "cache-class=";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_orders_is_read_back_as_it_was() {
        let orders = [LatencyLevel::Default, LatencyLevel::Polling]
            .into_iter()
            .flat_map(|latency| {
                [None, Some("gold".to_owned())].map(|cache_class| QuietRequest { latency, cache_class })
            });
        for order in orders {
            assert_eq!(QuietRequest::parse(&order.text()), Some(order));
        }
        for wrong in ["latency=fast", "cache-class=", "gold", "cache-class=a/b"] {
            assert_eq!(QuietRequest::parse(wrong), None, "{wrong}");
        }
    }
}
