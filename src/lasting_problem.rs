//! A problem that lasts.

/// A problem that lasts until it changes or ends, so that it is logged once.
#[derive(Debug, Default)]
pub(crate) struct LastingProblem(Option<String>);

impl LastingProblem {
    /// The problem, while it lasts.
    pub(crate) fn text(&self) -> Option<&String> {
        self.0.as_ref()
    }

    /// Notes a problem. Returns whether it differs from the one before.
    pub(crate) fn begins(&mut self, problem: &str) -> bool {
        let is_new = self.0.as_deref() != Some(problem);
        if is_new {
            self.0 = Some(problem.to_owned());
        }
        is_new
    }

    /// Notes that there is no problem. Returns whether there was one.
    pub(crate) fn ends(&mut self) -> bool {
        self.0.take().is_some()
    }
}
