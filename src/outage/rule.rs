//! The rule, as plain data.

use std::num::NonZeroU32;

use crate::error::ConfigError;

/// What becomes of a request when the store cannot decide it. Never is it a denial: nobody knows that a quota is used up.
///
/// | rule | the request | what is told |
/// | --- | --- | --- |
/// | [`Refuse`](Self::Refuse), the default | is refused: 503 over HTTP, `UNAVAILABLE` over gRPC | [`Refusal::Unavailable`](crate::Refusal::Unavailable) |
/// | [`Admit`](Self::Admit) | goes on, and is counted nowhere | [`Unchecked`](crate::Unchecked), in the extensions of request and response |
/// | [`Local`](Self::Local) | is decided in the memory of this process, by its share of every quota | [`LocalDecision`](crate::LocalDecision) in the same places, or [`Refusal::BeyondShare`](crate::Refusal::BeyondShare), again a 503 |
///
/// None of them has fields such as `RateLimit` or `Retry-After`: nobody knows what remains, nor when the store is back.
///
/// It is said once for a layer with [`Builder::outage`](crate::Builder::outage), and for each request with
/// [`Builder::outage_by`](crate::Builder::outage_by).
///
/// # Why refusing is the default
///
/// A limit protects something: a password from being guessed, a bill from growing, a database from being overrun. Admitting
/// takes this protection away at the very moment at which the system is weak, and to bring that moment about is then a way
/// around the limit. A share takes a number that this crate cannot know. So whoever wants either has to say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutageRule {
    /// It is refused, with the reason.
    #[default]
    Refuse,
    /// It goes on, and is counted nowhere: if the *store* cannot decide, or too many checks are under way.
    ///
    /// Where only this check cannot be decided, it is refused all the same: that is so for the
    /// [reasons](crate::Reason::is_of_one_check) `CrossSlot`, `Full`, `ForeignValue` and `Unsupported`. The first and the last
    /// are mistakes that should be seen, and the others a client may bring about by itself, so that they would be a way
    /// around the limit.
    Admit,
    /// It is decided by this share of every quota, in the memory of this process.
    ///
    /// With the right number of processes, all of them together admit no more than the quota by local decisions in any
    /// window, in the sense in which the policy's [`Algorithm`](crate::Algorithm) promises it. The store knows nothing of
    /// these charges, and the memory nothing of the store's: a window that touches a seam between the two may hold twice the
    /// quota, and three times if the store has lost its data meanwhile. A check that has missed its deadline may be charged
    /// in both, which errs on the side of too few.
    ///
    /// Where the share of a quota is 0, or the cost is above it, a request that costs something is refused. It may well be
    /// admitted when the store is back: so this is a 503 too, and no wait is told, nor that no wait helps.
    Local(Share),
}

/// Which part of every quota this process may grant by itself: `floor(quota / processes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(NonZeroU32);

impl Share {
    /// An equal share for each of so many processes, 1 to 2^32-1. It should be the largest number that ever runs at one time,
    /// those included that are just being replaced: with fewer, less than the quota is granted, and with more, more.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Share`] if there are 0.
    pub fn among(processes: u32) -> Result<Self, ConfigError> {
        NonZeroU32::new(processes).map(Self).ok_or(ConfigError::Share { processes })
    }

    /// The whole quota, for a single process. Of several, each would grant all of it.
    pub fn whole() -> Self {
        Self(NonZeroU32::MIN)
    }

    /// Among how many processes a quota is shared.
    pub fn processes(self) -> u32 {
        self.0.get()
    }
}
