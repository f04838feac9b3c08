//! The dialects of the rate limit fields: which header fields state a decision.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;

use super::fields::{self, RetryAfter};
use crate::decision::Decision;

/// The dialect of the rate limit fields of a response. Set it with [`RateLimitLayerBuilder::dialect`](crate::RateLimitLayerBuilder::dialect).
///
/// | dialect | fields |
/// | --- | --- |
/// | [`Draft11`](Self::Draft11), the default | `RateLimit-Policy`, `RateLimit` |
/// | [`DraftNext`](Self::DraftNext) | the same, in the form that the next draft will probably have |
/// | [`Draft7`](Self::Draft7) | `RateLimit-Policy`, `RateLimit: limit=, remaining=, reset=` |
/// | [`Draft6`](Self::Draft6) | `RateLimit-Policy`, `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` |
/// | [`XRateLimit`](Self::XRateLimit) | `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` |
/// | [`XRateLimitByPolicy`](Self::XRateLimitByPolicy) | `x-ratelimit-limit-requests`, `x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests`, and so on for every policy |
/// | [`Off`](Self::Off) | none |
///
/// A layer sends one dialect. Some parsers read `RateLimit` first, fail on its newer forms, and then ignore the legacy fields.
///
/// In every dialect, a denial has `Retry-After` (RFC 9110) in whole seconds, rounded up, unless no wait helps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// The structured fields of the IETF draft "RateLimit header fields for HTTP", revision 11: `"burst";q=10;w=1` and
    /// `"burst";r=7;t=1` for every policy. `t` is [`next_after`](crate::Status::next_after).
    #[default]
    Draft11,
    /// The fields of [`Draft11`](Self::Draft11) in the form that the next revision will probably have: `"burst";a=7;w=1;c=1` for
    /// every policy. `a` are the available units (`r` of revision 11), `w` is the effective window (`t`), and `c` is the cost of this
    /// request.
    ///
    /// **This dialect has no stable form.** It follows the next revision when it is published, in any release of this crate. Use it to
    /// prepare a client.
    DraftNext,
    /// The fields of revision 7 of the draft: `RateLimit: limit=10, remaining=7, reset=1` for one policy, chosen as by
    /// [`XRateLimit`](Self::XRateLimit), and `RateLimit-Policy: 10;w=1, 1000;w=3600` for every policy.
    ///
    /// `reset` is [`reset_after`](crate::Status::reset_after), and of a denied policy in flight at least
    /// [its wait](crate::Policy::retry_after). `w` is required in this revision, so `RateLimit-Policy` leaves out a policy
    /// without a window, and one whose window is not a whole number of seconds.
    Draft7,
    /// The fields of revision 6 of the draft: `RateLimit-Limit: 10`, `RateLimit-Remaining: 7` and `RateLimit-Reset: 1`, with the
    /// values and the `RateLimit-Policy` of [`Draft7`](Self::Draft7).
    Draft6,
    /// The legacy fields without a standard, for one policy: of a denial, the one with the longest wait, and otherwise the one
    /// with the smallest remaining quota.
    ///
    /// `X-RateLimit-Reset` is the time at which nothing is used, if there are no other charges
    /// ([`reset_after`](crate::Status::reset_after)). Services send it in two forms that a client cannot tell apart, so the form
    /// has no default.
    XRateLimit(Reset),
    /// The fields of language model services, for every policy: `x-ratelimit-remaining-tokens` for the policy `tokens`. Name the
    /// policies `requests` and `tokens` for clients that read these two.
    ///
    /// The name of the policy is in lower case. A policy whose name is not a part of a field name (RFC 9110, a token) has no
    /// fields. `reset` is [`reset_after`](crate::Status::reset_after) in whole seconds, rounded up, as a duration such as `7s`,
    /// `6m0s` or `1h0m30s`.
    XRateLimitByPolicy,
    /// No rate limit fields. A denial still has `Retry-After`.
    Off,
}

/// The form of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reset {
    /// The seconds until the reset, rounded up.
    Seconds,
    /// The Unix time of the reset in seconds, rounded up, on the clock of this process.
    UnixTime,
}

impl Dialect {
    /// Adds the fields of a decision to the headers of a response, and `Retry-After` for a denial. A layer calls it for every
    /// decided request. Call it for a response that a handler builds for a decision of its own [`Limiter`](crate::Limiter).
    ///
    /// The fields of an inner layer are kept: list fields are joined, and of other fields those with the smaller remaining quota
    /// stay. The larger `Retry-After` stays, also if it is an HTTP date. A value that cannot be joined, because it is not a list of the
    /// same form (RFC 9651), is replaced: with it, clients would ignore the whole field.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tower_sliding_window::{Decision, answer::{Dialect, Reset}};
    ///
    /// fn legacy(decision: &Decision, headers: &mut HeaderMap) {
    ///     Dialect::XRateLimit(Reset::Seconds).add_fields(decision, headers);
    /// }
    /// ```
    pub fn add_fields(self, decision: &Decision, headers: &mut HeaderMap) {
        self.add(decision, headers, RetryAfter::default());
    }

    pub(super) fn add(self, decision: &Decision, headers: &mut HeaderMap, retry_after: RetryAfter) {
        match self {
            Self::Draft11 => fields::add_draft_11(headers, decision),
            _ => self.add_other(decision, headers),
        }
        if !decision.is_admitted() {
            fields::add_retry_after(headers, decision, retry_after);
        }
    }

    /// Adds the fields of a dialect that is not the default. As a part of its caller, it would slow the default.
    #[inline(never)]
    fn add_other(self, decision: &Decision, headers: &mut HeaderMap) {
        match self {
            Self::DraftNext => fields::add_draft_next(headers, decision),
            Self::Draft7 => fields::add_draft_7(headers, decision),
            Self::Draft6 => fields::add_draft_6(headers, decision),
            Self::XRateLimit(Reset::Seconds) => fields::add_legacy(headers, decision, Duration::ZERO),
            Self::XRateLimit(Reset::UnixTime) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                fields::add_legacy(headers, decision, now);
            }
            Self::XRateLimitByPolicy => fields::add_by_policy(headers, decision),
            Self::Draft11 | Self::Off => {}
        }
    }
}
