//! HTTP. All parts are values, so the protocol has no type parameters.

use std::{fmt, mem, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CACHE_CONTROL};

use super::{AnyProtocol, Fits, LimitedBody, Peers, Protocol, Tables, nested};
use crate::{
    answer::{Answer, ProblemDetails},
    cost::Costs,
    error::ConfigError,
    head::{Head, Lookups, ResponseHead},
    key::KeyError,
    limit::Limit,
    limiter::{Admission, Basis, Draft, Rejection},
    outage::OutageRule,
    policy::{Policy, check_kept_bodies},
    settle::Unsettled,
};

pub(crate) type HeadFn<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;
pub(crate) type SettleFn = Arc<dyn Fn(&ResponseHead<'_>) -> Option<Costs> + Send + Sync>;
pub(crate) type RejectFn = Arc<dyn Fn(&Rejection, &Head<'_>) -> Response<Bytes> + Send + Sync>;

/// The protocol of every service from `Request<_>` to `Response<_>`. A [`RateLimitLayerBuilder`](crate::RateLimitLayerBuilder) makes it.
///
/// # Extensions
///
/// | | in the request | in the response |
/// | --- | --- | --- |
/// | admitted by the store | [`Decision`](crate::Decision), unless [left out](crate::RateLimitLayerBuilder::omit_decision) | |
/// | admitted by the local fallback | [`LocalDecision`](crate::outage::LocalDecision) | [`LocalDecision`](crate::outage::LocalDecision) |
/// | admitted unchecked | [`Unchecked`](crate::outage::Unchecked) | [`Unchecked`](crate::outage::Unchecked) |
/// | rejected | | [`Rejection`], which contains the [`Decision`](crate::Decision) of a denial |
/// | holds units [in flight](crate::Policy::in_flight) | [`Hold`](crate::hold::Hold), in nested layers of the units of all layers so far | |
/// | a reservation: the layer [settles](crate::RateLimitLayerBuilder::settle_by), or the [draft reserves](super::Draft::reserve) | [`Reservation`](crate::Reservation) | |
///
/// The header fields of an admitted response state its decision. If an outer layer needs the [`Decision`](crate::Decision) itself, an inner one can
/// copy it from the request to the response.
///
/// If layers are nested, the request contains the values of every kind from the innermost layer so far, and the response those
/// of the outermost layer. A layer replaces a value of the same kind only, except a `Hold`. List fields are joined, and the larger `Retry-After` is kept.
#[derive(Clone)]
pub struct Http {
    /// Its policies are added to those of the limiter.
    pub(crate) first: Limit,
    /// `None` if no limit counts by the address of the peer.
    pub(crate) peers: Option<Arc<Peers>>,
    /// `None` if no limit chooses from a policy table.
    pub(crate) tables: Option<Arc<Tables>>,
    pub(crate) options: HttpOptions,
    /// Whether the draft of a request is that of the first limit, without any option.
    pub(crate) is_plain: bool,
}

/// What the builder of a layer may add to its first limit.
#[derive(Clone, Default)]
pub(crate) struct HttpOptions {
    /// Replaces the first limit.
    pub(crate) plan: Option<HeadFn<Result<Draft, KeyError>>>,
    pub(crate) others: Vec<Limit>,
    pub(crate) exempt: Option<HeadFn<bool>>,
    pub(crate) shadow: Option<HeadFn<bool>>,
    /// For this percentage of the partition keys, limits are enforced. `None` for all keys.
    pub(crate) enforce_percent: Option<u32>,
    pub(crate) outage: Option<OutageRule>,
    pub(crate) outage_by: Option<HeadFn<OutageRule>>,
    pub(crate) settle: Option<SettleFn>,
    pub(crate) unsettled: Option<Unsettled>,
    pub(crate) clamps: bool,
    pub(crate) reject: Option<RejectFn>,
    /// `None` for [`ProblemDetails`], whose responses to repeated denials are cached.
    pub(crate) answer: Option<Arc<dyn Answer>>,
    /// Whether the decision of an admitted request is left out of its extensions.
    pub(crate) omits_decision: bool,
}

/// [`Http`] for services that keep their body type, which must be `From<Bytes>`. See
/// [`RateLimitLayer::same_body`](crate::RateLimitLayer::same_body).
#[derive(Clone, Debug)]
pub struct SameBody(pub(crate) Http);

impl HttpOptions {
    /// Returns whether no option changes the draft of a request.
    pub(crate) fn are_plain(&self) -> bool {
        let Self { plan, others, exempt, shadow, enforce_percent, outage, outage_by, settle, .. } = self;
        let has_closure = plan.is_some() || exempt.is_some() || shadow.is_some() || outage_by.is_some();
        let has_rule = enforce_percent.is_some() || outage.is_some() || settle.is_some();
        !(has_closure || has_rule || !others.is_empty() || self.unsettled.is_some() || self.clamps)
    }
}

impl Http {
    /// Returns the protocol that keeps the types of bodies.
    ///
    /// # Errors
    ///
    /// Returns an error if a policy is in flight.
    pub(crate) fn same_body(&self, of_limiter: &[Policy]) -> Result<SameBody, ConfigError> {
        let limits = [&self.first].into_iter().chain(&self.options.others).map(Limit::own_policies);
        [of_limiter].into_iter().chain(limits).try_for_each(check_kept_bodies)?;
        let tables = self.tables.as_deref().map(Tables::keeping_bodies).transpose()?.map(Arc::new);
        Ok(SameBody(Self { tables, ..self.clone() }))
    }

    #[inline]
    fn draft(&self, head: &Head<'_>) -> Result<Draft, KeyError> {
        if self.is_plain { self.first.draft_with_limiter(head) } else { self.draft_with_options(head) }
    }

    // The draft is changed in its place: to move it costs more than to change it.
    fn draft_with_options(&self, head: &Head<'_>) -> Result<Draft, KeyError> {
        let is_exempt = self.options.exempt.as_ref().is_some_and(|exempt| exempt(head));
        if !is_exempt && let Some(peers) = &self.peers {
            peers.count(head.headers);
        }
        let is_shadow = !is_exempt && self.options.shadow.as_ref().is_some_and(|is_shadow| is_shadow(head));
        let mut draft = match &self.options.plan {
            _ if is_exempt => Ok(Draft::exempt()),
            None => self.first.draft_with_limiter(head),
            Some(plan) => plan(head),
        };
        if let Err(error) = draft {
            draft = or_uncounted(error, is_shadow);
        }
        if let Ok(planned) = &mut draft
            && !is_exempt
            && let Err(error) = self.complete(planned, head, is_shadow)
        {
            draft = Err(error);
        }
        if let Some(tables) = &self.tables {
            tables.warn();
        }
        draft
    }

    /// Adds the further limits, and the rules of this layer.
    fn complete(&self, draft: &mut Draft, head: &Head<'_>, is_shadow: bool) -> Result<(), KeyError> {
        for limit in &self.options.others {
            let other = limit.draft(head).or_else(|error| or_uncounted(error, is_shadow))?;
            *draft = mem::replace(draft, Draft::exempt()).and(other);
        }
        if is_shadow || self.options.enforce_percent == Some(0) {
            draft.shadow_all();
        } else if let Some(percent @ ..100) = self.options.enforce_percent {
            draft.shadow_where(|key| u32::from(key.percentile()) >= percent);
        }
        if !draft.is_empty() {
            let HttpOptions { outage, outage_by, settle, unsettled, clamps, .. } = &self.options;
            if draft.outage.is_none() {
                draft.outage = outage_by.as_ref().map(|rule| rule(head)).or(*outage);
            }
            draft.reserves |= settle.is_some();
            (draft.unsettled, draft.clamps) = (*unsettled, *clamps);
        }
        Ok(())
    }

    fn answer(&self) -> &dyn Answer {
        self.options.answer.as_deref().unwrap_or(&ProblemDetails)
    }

    fn rejected(&self, head: &Head<'_>, rejection: Rejection) -> Response<Bytes> {
        let mut response = match (&self.options.reject, &self.options.answer) {
            (None, None) => rejection.to_response(),
            (reject, _) => {
                let reject = reject.as_ref().filter(|_| !self.answer().overrides_rejection(head));
                let built = reject.map(|reject| reject(&rejection, head));
                let mut response = built.unwrap_or_else(|| self.answer().reject(&rejection, head));
                response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
                if let Some(decision) = rejection.decision() {
                    self.answer().fields(decision, response.headers_mut());
                }
                response
            }
        };
        response.extensions_mut().insert(rejection);
        response
    }

    fn admitted<B>(&self, request: &mut Request<B>, admission: &Admission) {
        let extensions = request.extensions_mut();
        match &admission.basis {
            Basis::Store(_) if self.options.omits_decision => {}
            Basis::Store(decision) => {
                if let Some(outer) = extensions.insert(decision.clone()) {
                    nested::compare(outer, decision, extensions);
                }
            }
            Basis::Local(local) => drop(extensions.insert(local.clone())),
            Basis::Unchecked(unchecked) => drop(extensions.insert(unchecked.clone())),
            Basis::Exempt => {}
        }
        if let Some(hold) = admission.hold() {
            hold.insert_into(extensions);
        }
        if let Some(reservation) = admission.reservation() {
            extensions.insert(reservation.clone());
        }
    }

    fn responded<B>(&self, response: &mut Response<B>, admission: Option<&Admission>) {
        let Some(admission) = admission else { return };
        if let (Some(reservation), Some(settle)) = (admission.reservation(), &self.options.settle)
            && let Some(used) = settle(&ResponseHead::from(&*response))
        {
            // It proceeds in the background and does not delay the response.
            drop(reservation.settle(used));
        }
        match &admission.basis {
            Basis::Store(decision) => self.answer().fields(decision, response.headers_mut()),
            // The body of the response holds the units until it has ended.
            Basis::Local(local) => drop(response.extensions_mut().insert(local.without_hold())),
            Basis::Unchecked(unchecked) => drop(response.extensions_mut().insert(unchecked.clone())),
            Basis::Exempt => {}
        }
    }
}

/// Returns the draft of a limit whose key cannot be read. Shadow limits reject no request.
#[cold]
fn or_uncounted(error: KeyError, is_shadow: bool) -> Result<Draft, KeyError> {
    match error {
        error if !is_shadow => Err(error),
        KeyError::Misconfigured { .. } => Ok(Draft::uncounted(error)),
        _ => Ok(Draft::exempt()),
    }
}

/// Returns the route that axum has matched. A layer around the whole router runs before.
#[cfg(feature = "axum")]
fn matched_route<B>(request: &Request<B>) -> Option<&str> {
    request.extensions().get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
fn matched_route<B>(_: &Request<B>) -> Option<&str> {
    None
}

impl<B, RB, E> Protocol<Request<B>, Response<RB>, E> for Http {
    type Response = Response<LimitedBody<RB>>;

    fn plan(&self, request: &Request<B>) -> Result<Draft, KeyError> {
        self.draft(&Head::from(request).with_lookups(&Lookups::default()))
    }

    fn admit(&self, request: &mut Request<B>, admission: &Admission) {
        self.admitted(request, admission);
    }

    fn route<'a>(&self, request: &'a Request<B>) -> Option<&'a str> {
        matched_route(request)
    }

    fn reject(&self, request: &Request<B>, rejection: Rejection) -> Result<Self::Response, E> {
        Ok(self.rejected(&request.into(), rejection).map(LimitedBody::own))
    }

    fn respond(&self, mut response: Response<RB>, admission: Option<&Admission>) -> Self::Response {
        self.responded(&mut response, admission);
        let hold = admission.and_then(Admission::hold).cloned();
        response.map(|body| LimitedBody::inner(body, hold))
    }
}

impl<B, RB: From<Bytes>, E> Protocol<Request<B>, Response<RB>, E> for SameBody {
    type Response = Response<RB>;

    fn plan(&self, request: &Request<B>) -> Result<Draft, KeyError> {
        self.0.draft(&Head::from(request).with_lookups(&Lookups::default()))
    }

    fn admit(&self, request: &mut Request<B>, admission: &Admission) {
        self.0.admitted(request, admission);
    }

    fn route<'a>(&self, request: &'a Request<B>) -> Option<&'a str> {
        matched_route(request)
    }

    fn reject(&self, request: &Request<B>, rejection: Rejection) -> Result<Response<RB>, E> {
        Ok(self.0.rejected(&request.into(), rejection).map(RB::from))
    }

    fn respond(&self, mut response: Response<RB>, admission: Option<&Admission>) -> Response<RB> {
        self.0.responded(&mut response, admission);
        response
    }
}

impl AnyProtocol for Http {}

impl<S> Fits<S> for Http {}

impl AnyProtocol for SameBody {}

impl<S> Fits<S> for SameBody {}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}
