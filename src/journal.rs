//! `MESSAGE_ID`s of the journal entries that tell of something an operator should know.

/// Something that only this program writes was changed by somebody else.
pub const DRIFT: &str = "8e5be1c0b4a84b3f9d2a6f0c7d1e4a52";
/// An instance reached the state that was asked for: `isolated` or `contained`.
pub const ISOLATED: &str = "5b0f3a7e9c1d4f6ab2c8d5e0917f3b64";
