//! Merged checks: checks for the same server that are not written yet share one script call.
//!
//! A check that finds enough others in flight joins the open batch of its group, instead of sending a call of its own. A check that may
//! not share a call has a batch of its own. A task of
//! the batch runs when the tasks that are ready have run. It closes the batch and sends it as one call. The
//! [replies](super::script::merged::Replies) are those that the check script would send, so a check handles its reply, a redirect or a
//! lost connection as if it were alone.

mod batch;
mod flight;
mod groups;

pub(super) use batch::PendingReply;
pub use groups::Merging;
pub(super) use groups::{GroupKey, Merger, is_batchable, is_mergeable};
