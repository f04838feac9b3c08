//! The bugs. In the new text, `PLANTED` stands for the condition that the bug is on.

/// A bug: its name, the rule that must find it, and its changes.
pub struct Bug {
    pub name: &'static str,
    /// The name of the rule that must report the bug.
    #[allow(dead_code, reason = "the build does not read it")]
    pub rule: &'static str,
    /// For each change: the file below `src`, a text in it, and the new text.
    pub changes: &'static [(&'static str, &'static str, &'static str)],
}

pub const BUGS: &[Bug] = &[];
