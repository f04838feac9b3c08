//! Closures as extractors.

use http::Request;

use super::{IntoKey, KeyError, KeyExtractor, PartitionKey};
use crate::head::{FromHead, Head};

impl<F, Req, K> KeyExtractor<Req> for F
where
    F: Fn(&Req) -> K,
    K: IntoKey,
{
    fn extract(&self, request: &Req) -> Result<Option<PartitionKey>, KeyError> {
        self(request).into_key()
    }
}

impl<F, B, K> KeyExtractor<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> K,
    K: IntoKey,
{
    fn extract(&self, request: &Request<B>) -> Result<Option<PartitionKey>, KeyError> {
        self.call(request).into_key()
    }
}
