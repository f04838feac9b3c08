//! From a request to what the limiter is asked: one hook, whatever it is made of.

use http::Request;

use crate::{
    cost::CostFunction,
    head::{FromHead, Head},
    key::{KeyError, KeyExtractor, PartitionKey},
};

/// Turns a request into what the limiter is asked.
///
/// [`Keyed`] is made of a key, a cost and exemptions, which is what most services want. Every closure
/// `Fn(&Req) -> Result<Draft, KeyError>` is a plan too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` plans nothing for a `{Req}`",
    note = "its key, its cost or its exemptions are not for requests of this type"
)]
pub trait Plan<Req> {
    /// What to ask for this request.
    ///
    /// # Errors
    ///
    /// A [`KeyError`] if the request names nobody whose usage could be counted. It is refused then, and the error is no
    /// 429.
    fn plan(&self, request: &Req) -> Result<Draft, KeyError>;
}

/// What to ask the limiter for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Draft {
    /// Nothing: let it through, uncounted.
    Exempt,
    /// Check this key, at this cost in quota units, against all policies of the limiter.
    Check {
        /// Whose usage is counted.
        key: PartitionKey,
        /// What the request takes, in quota units, 0 to 2^32-1.
        cost: u32,
    },
}

/// A plan of a key, a cost and exemptions.
///
/// The type of a layer names it: `RateLimitLayer<Keyed<Or<Header, PeerIp>, RouteCosts>>`.
#[derive(Clone, Debug)]
pub struct Keyed<K, C = u32, X = NoExemptions> {
    pub(crate) key: K,
    pub(crate) cost: C,
    pub(crate) exempt: X,
    pub(crate) without_key: WithoutKey,
}

/// What happens to a request that has no key of the kind that is asked for.
///
/// A request whose key is there but cannot be read is refused in any case: otherwise a client would choose, by what it
/// garbles, to be counted with others or not at all. So is one whose key the server is not set up to know, such as the
/// peer's address without connect info.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WithoutKey {
    /// It is refused, with 400 over HTTP: nobody passes uncounted, and nobody shares a limit unawares.
    #[default]
    Refuse,
    /// It passes, uncounted.
    Exempt,
    /// It shares this key with all others that have none.
    Share(PartitionKey),
}

/// Tells which requests pass uncounted. Every closure `Fn(&Req) -> bool` is an exemption.
pub trait Exemption<Req> {
    /// Whether this request passes, uncounted.
    fn is_exempt(&self, request: &Req) -> bool;
}

/// Counts every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoExemptions;

impl<Req, F> Plan<Req> for F
where
    F: Fn(&Req) -> Result<Draft, KeyError>,
{
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        self(request)
    }
}

impl<Req, K, C, X> Plan<Req> for Keyed<K, C, X>
where
    K: KeyExtractor<Req>,
    C: CostFunction<Req>,
    X: Exemption<Req>,
{
    fn plan(&self, request: &Req) -> Result<Draft, KeyError> {
        if self.exempt.is_exempt(request) {
            return Ok(Draft::Exempt);
        }
        let key = match (self.key.extract(request)?, &self.without_key) {
            (Some(key), _) => key,
            (None, WithoutKey::Share(key)) => key.clone(),
            (None, WithoutKey::Exempt) => return Ok(Draft::Exempt),
            (None, WithoutKey::Refuse) => return Err(KeyError::Missing),
        };
        Ok(Draft::Check { key, cost: self.cost.cost(request) })
    }
}

impl<Req> Exemption<Req> for NoExemptions {
    fn is_exempt(&self, _request: &Req) -> bool {
        false
    }
}

impl<Req, F> Exemption<Req> for F
where
    F: Fn(&Req) -> bool,
{
    fn is_exempt(&self, request: &Req) -> bool {
        self(request)
    }
}

impl<B, F> Exemption<Request<B>> for FromHead<F>
where
    F: Fn(&Head<'_>) -> bool,
{
    fn is_exempt(&self, request: &Request<B>) -> bool {
        self.call(request)
    }
}
