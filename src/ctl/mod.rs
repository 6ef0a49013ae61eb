//! `steliactl`: the operator's view and hand.
