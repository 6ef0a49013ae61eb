//! Reload: new settings are used, everything is audited, and the caller is answered once each instance was looked at.

use std::sync::Arc;

use stelia_api::Error;
use stelia_model::Trigger;
use stelia_settings::Settings;

use super::{Asker, Call, Reply};
use crate::engine::handle::Handle;
use crate::engine::pass::Numbers;
use crate::engine::state::EngineState;

struct ReloadCall {
    settings: Settings,
    reply: Reply<()>,
}

impl Handle {
    /// Use these settings.
    pub(crate) async fn reload(&self, settings: Settings) -> Result<(), Error> {
        self.call(|reply| ReloadCall { settings, reply }).await
    }
}

impl Call for ReloadCall {
    fn begin(self: Box<Self>, state: &mut EngineState, asker: Asker) {
        let Self { settings, reply } = *self;
        state.reload(settings);
        state.sweep(Box::new(|_: &EngineState, _: Numbers| drop(reply.send(Ok(())))));
        state.inbox.release(&asker);
    }

    /// New settings are used although the caller left.
    fn is_given_up(&self) -> bool {
        false
    }
}

impl EngineState {
    fn reload(&mut self, settings: Settings) {
        self.passes.trigger = Some(Trigger::Reload);
        self.next_audit_in(settings.audit_interval);
        self.settings = settings;
        self.shown_settings.send_replace(Arc::new(self.settings.clone()));
        self.picture.use_settings(&self.settings);
        self.audit(Trigger::Reload);
        self.dirty.everyone = true;
    }
}
