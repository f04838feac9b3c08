//! The peers of a layer that counts by their addresses: whether they are proxies.

use http::{HeaderMap, header::FORWARDED};

use crate::{limiter::Limiter, observe::FirstRequests};

/// Warns if the peers are proxies.
pub(crate) struct Peers {
    limiter: Limiter,
    first_requests: FirstRequests,
}

impl Peers {
    pub(crate) fn new(limiter: Limiter) -> Self {
        // Health checks of a proxy usually have no header.
        Self { limiter, first_requests: FirstRequests::most() }
    }

    /// Counts a request that is not exempt.
    #[inline]
    pub(super) fn count(&self, headers: &HeaderMap) {
        let is_forwarded = || headers.contains_key("x-forwarded-for") || headers.contains_key(FORWARDED);
        if self.first_requests.show(is_forwarded) {
            self.limiter.events().peer_is_proxy(self.limiter.policies());
        }
    }
}
