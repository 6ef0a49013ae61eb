//! Who may do what: one pure table.

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// uid 0 on the system bus.
    Root,
    /// Any other user on the system bus.
    User,
    /// A process of a pod, on the runner socket.
    Pod,
    /// A process of no pod, on the runner socket.
    Stranger,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// RegisterInstance.
    Register,
    /// AttachVcpus.
    Attach,
    /// Deregister, of either interface.
    Deregister,
    /// ListInstances, GetInstance, GetInstanceByPID.
    List,
    /// Describe.
    Describe,
    /// Audit of one instance.
    Audit,
    /// Reconcile.
    Reconcile,
    /// Reload.
    Reload,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// For every instance.
    Allow,
    /// For the caller's own instance; any other is as if it did not exist.
    Own,
    /// No.
    Deny,
}

/// The table.
pub fn decide(role: Role, operation: Operation) -> Decision {
    use Operation::{Attach, Audit, Deregister, Describe, List, Reconcile, Register, Reload};
    match (role, operation) {
        (Role::Root, _) | (Role::User, List | Describe) => Decision::Allow,
        (Role::Pod, Register | Attach | Deregister | List | Audit) => Decision::Own,
        (Role::User, Register | Attach | Deregister | Audit | Reconcile | Reload)
        | (Role::Pod, Describe | Reconcile | Reload)
        | (Role::Stranger, _) => Decision::Deny,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::{Attach, Audit, Deregister, Describe, List, Reconcile, Register, Reload};

    const ALL: [Operation; 8] = [Register, Attach, Deregister, List, Describe, Audit, Reconcile, Reload];

    #[test]
    fn a_pod_never_gets_more_than_its_own() {
        assert!(
            ALL.into_iter()
                .all(|operation| decide(Role::Pod, operation) != Decision::Allow)
        );
        assert_eq!(decide(Role::Pod, Describe), Decision::Deny);
    }

    #[test]
    fn a_stranger_on_the_runner_socket_gets_nothing_and_a_user_only_reads() {
        for operation in ALL {
            assert_eq!(decide(Role::Stranger, operation), Decision::Deny);
            let reads = matches!(operation, List | Describe);
            assert_eq!(decide(Role::User, operation) == Decision::Allow, reads, "{operation:?}");
        }
    }
}
