//! The same node under other settings of kubelet.

use super::cpus::CpuOptions;
use super::merge::{Policy, Scope};
use super::node::{Node, StartError};
use super::settings::{CpuManager, Settings};

/// Why kubelet could not run with other settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    /// It would not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The two exclude each other, and kubelet does not start.
    #[error("align-by-socket does not go with the Topology Manager's policy single-numa-node")]
    SocketOfOneNode,
}

/// Settings worth a comparison: the given ones, then every policy and scope of the Topology Manager with the given
/// options, then every option of the CPU manager alone with the given policy and scope. None occurs twice.
pub fn variants(settings: &Settings) -> Vec<Settings> {
    let mut all = vec![settings.clone()];
    let mut add = |variant: Settings| {
        if !all.contains(&variant) {
            all.push(variant);
        }
    };
    let aligned = [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode];
    let both = [Scope::Container, Scope::Pod];
    let scopes = aligned.into_iter().flat_map(|policy| both.map(|scope| (policy, scope)));
    // Without a policy there is no scope.
    let none = (settings.topology_policy != Policy::None).then_some((Policy::None, Scope::Container));
    for (topology_policy, topology_scope) in none.into_iter().chain(scopes) {
        add(Settings {
            topology_policy,
            topology_scope,
            ..settings.clone()
        });
    }
    if let CpuManager::Static {
        options,
        count,
        reserved,
    } = &settings.cpu_manager
    {
        let strict_cpu_reservation = options.strict_cpu_reservation;
        let alone: [fn(&mut CpuOptions); 7] = [
            |_| {},
            |options| options.full_pcpus_only = true,
            |options| options.distribute_cpus_across_numa = true,
            |options| options.distribute_cpus_across_cores = true,
            |options| options.align_by_socket = true,
            |options| options.prefer_align_cpus_by_uncorecache = true,
            |options| options.strict_cpu_reservation = !options.strict_cpu_reservation,
        ];
        for turn in alone {
            let mut options = CpuOptions {
                strict_cpu_reservation,
                ..CpuOptions::default()
            };
            turn(&mut options);
            add(Settings {
                cpu_manager: CpuManager::Static {
                    options,
                    count: *count,
                    reserved: reserved.clone(),
                },
                ..settings.clone()
            });
        }
    }
    all
}

/// Whether settings of two managers are compatible; the manager itself checks those of one.
///
/// # Errors
/// kubelet would not start with them.
pub fn go_together(settings: &Settings) -> Result<(), VariantError> {
    match &settings.cpu_manager {
        CpuManager::Static { options, .. }
            if options.align_by_socket && settings.topology_policy == Policy::SingleNumaNode =>
        {
            Err(VariantError::SocketOfOneNode)
        }
        _ => Ok(()),
    }
}

/// The node with the same allocations, as if kubelet had always run with these settings.
///
/// # Errors
/// kubelet would not start with them.
pub fn with_settings(node: &Node, settings: Settings) -> Result<Node, VariantError> {
    go_together(&settings)?;
    let mut state = node.state().clone();
    if let CpuManager::Static { options, .. } = &settings.cpu_manager {
        // Whether reserved CPUs are in the shared pool depends on the settings.
        let reserved = node.reserved_cpus();
        state.cpus.default = if options.strict_cpu_reservation {
            state.cpus.default.difference(&reserved)
        } else {
            state.cpus.default.union(&reserved)
        };
    }
    Ok(Node::start(node.machine().clone(), settings, state)?)
}
