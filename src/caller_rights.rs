//! Who may do what: one pure table. `docs/authorization.md` has it too.

use stelia_cpus::text::named;

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

named! {
    pub enum Operation {
        Register = "register",
        Attach = "attach",
        Deregister = "deregister",
        List = "list",
        Describe = "describe",
        Audit = "audit",
        /// What Reconcile would do, as its option dry-run asks for it.
        Preview = "preview",
        Reconcile = "reconcile",
        /// Dry runs included.
        Rebind = "rebind",
        /// Dry runs included.
        Resize = "resize",
        /// Read the configuration anew, and what other rules would adopt.
        Reload = "reload",
        /// The account of one's own VM, or of any.
        Account = "account",
        /// The accounts of all VMs, those that are gone included, and whether the ledger is whole.
        Ledger = "ledger",
        /// Look closely at who runs on a VM's CPUs: that names tasks of the node.
        Attribute = "attribute",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// For every instance.
    Allow,
    /// For the caller's own instance; any other is as if it did not exist.
    Own,
    /// For every instance, if polkit says so; without polkit no.
    Ask(Action),
    Deny,
}

named! {
    /// The actions polkit is asked about (`packaging/polkit/`).
    pub enum Action {
        /// Make and end instances: it takes CPUs from others, or a VM's from it.
        ManageInstances = "io.stelia.Isolation1.manage-instances",
        /// Have promises checked and repaired, the configuration read anew, and read who ran on VMs' CPUs: it changes nothing that was
        /// not decided.
        Maintain = "io.stelia.Isolation1.maintain",
        /// Have VMs moved to better CPUs.
        Rebind = "io.stelia.Isolation1.rebind",
    }
}

pub fn decide(role: Role, operation: Operation) -> Decision {
    use Operation::{
        Account, Attach, Attribute, Audit, Deregister, Describe, Ledger, List, Preview, Rebind, Reconcile, Register,
        Reload, Resize,
    };
    match (role, operation) {
        (Role::Root, _) | (Role::User, List | Describe | Preview) => Decision::Allow,
        (Role::User, Register | Attach | Deregister | Resize) => Decision::Ask(Action::ManageInstances),
        (Role::User, Rebind) => Decision::Ask(Action::Rebind),
        (Role::User, Audit | Reconcile | Reload | Account | Ledger | Attribute) => Decision::Ask(Action::Maintain),
        (Role::Pod, Register | Attach | Deregister | List | Audit | Account) => Decision::Own,
        (Role::Pod, Describe | Preview | Rebind | Resize | Reconcile | Reload | Ledger | Attribute)
        | (Role::Stranger, _) => Decision::Deny,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::{
        Account, Attach, Attribute, Audit, Deregister, Describe, Ledger, List, Preview, Rebind, Reconcile, Register,
        Reload, Resize,
    };

    const ROLES: [(Role, &str); 4] = [
        (Role::Root, "root (bus)"),
        (Role::User, "other user (bus)"),
        (Role::Pod, "pod (runner socket)"),
        (Role::Stranger, "no pod (runner socket)"),
    ];

    /// The members of the contract that an operation stands for.
    fn members(operation: Operation) -> &'static str {
        match operation {
            Register => "RegisterInstance",
            Attach => "AttachVcpus",
            Deregister => "Deregister",
            List => "ListInstances, GetInstance, GetInstanceByPID, an Instance's properties",
            Describe => "Describe, NodeTopology, EvaluatePlacement, the Manager's properties but Version",
            Audit => "Audit",
            Preview => "Reconcile with dry-run",
            Reconcile => "Reconcile",
            Rebind => "Rebind",
            Resize => "Resize",
            Reload => "Reload, PreviewAdoption",
            Account => "Instance.Ledger",
            Ledger => "Manager.Ledger, VerifyLedger",
            Attribute => "Attribute",
        }
    }

    /// The table as Markdown, for `docs/authorization.md`.
    fn table() -> String {
        let cell = |role, operation| match decide(role, operation) {
            Decision::Allow => "yes".to_owned(),
            Decision::Own => "its own".to_owned(),
            Decision::Ask(action) => format!("polkit: `{}`", action.name()),
            Decision::Deny => "no".to_owned(),
        };
        let headings = ROLES.map(|(_, heading)| heading).join(" | ");
        let mut text = format!("| member | {headings} |\n|---|---|---|---|---|\n");
        for operation in Operation::ALL {
            let cells = ROLES.map(|(role, _)| cell(role, operation)).join(" | ");
            text.push_str(&format!("| {} | {cells} |\n", members(operation)));
        }
        text
    }

    /// Every cell, written down a second time.
    #[test]
    fn every_cell_is_what_was_decided() {
        let (manage, maintain) = (Decision::Ask(Action::ManageInstances), Decision::Ask(Action::Maintain));
        let (allow, own, deny) = (Decision::Allow, Decision::Own, Decision::Deny);
        for (operation, cells) in [
            (Register, [allow, manage, own, deny]),
            (Attach, [allow, manage, own, deny]),
            (Deregister, [allow, manage, own, deny]),
            (List, [allow, allow, own, deny]),
            (Describe, [allow, allow, deny, deny]),
            (Audit, [allow, maintain, own, deny]),
            (Preview, [allow, allow, deny, deny]),
            (Reconcile, [allow, maintain, deny, deny]),
            (Rebind, [allow, Decision::Ask(Action::Rebind), deny, deny]),
            (Resize, [allow, manage, deny, deny]),
            (Reload, [allow, maintain, deny, deny]),
            (Account, [allow, maintain, own, deny]),
            (Ledger, [allow, maintain, deny, deny]),
            (Attribute, [allow, maintain, deny, deny]),
        ] {
            assert_eq!(ROLES.map(|(role, _)| decide(role, operation)), cells, "{operation:?}");
        }
    }

    #[test]
    fn the_documentation_holds_this_table() {
        let page = std::fs::read_to_string("docs/authorization.md").unwrap();
        assert!(page.contains(&table()), "docs/authorization.md must hold:\n{}", table());
    }

    #[test]
    fn every_action_is_declared_to_polkit_and_no_other() {
        let file = std::fs::read_to_string("packaging/polkit/io.stelia.Isolation1.policy").unwrap();
        let declared: Vec<&str> = file
            .split("<action id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert_eq!(declared, Action::ALL.map(Action::name));
    }
}
