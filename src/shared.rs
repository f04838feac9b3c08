//! The state that all clones of a layer and of its services share.

use crate::limiter::Limiter;

pub(crate) struct Shared<P> {
    pub(crate) limiter: Limiter,
    pub(crate) protocol: P,
}
