//! The response body of a limited service.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::hold::Hold;

pin_project! {
    /// The response body of a limited service: the inner service's body, or the layer's own.
    ///
    /// It accepts any inner body with `Data = Bytes`. For a service that must keep its body type, use
    /// [`RateLimitLayer::same_body`](crate::RateLimitLayer::same_body).
    /// It holds the units of policies [in flight](crate::Policy::in_flight) until it has ended or is dropped.
    #[derive(Debug)]
    pub struct LimitedBody<B> { #[pin] kind: Kind<B>, hold: Option<Hold> }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProj]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Own { bytes: Bytes },
    }
}

impl<B> LimitedBody<B> {
    pub(super) fn inner(body: B, hold: Option<Hold>) -> Self {
        Self { kind: Kind::Inner { body }, hold }
    }

    pub(super) fn own(bytes: Bytes) -> Self {
        Self { kind: Kind::Own { bytes }, hold: None }
    }

    /// Returns the body of the inner service. This releases the units that the request holds: to keep them, take the
    /// [`Hold`] from the extensions of the request.
    ///
    /// # Errors
    ///
    /// Returns the bytes of the layer's own response, if the layer has rejected the request.
    pub fn into_inner(self) -> Result<B, Bytes> {
        match self.kind {
            Kind::Inner { body } => Ok(body),
            Kind::Own { bytes } => Err(bytes),
        }
    }
}

impl<B> Default for LimitedBody<B> {
    /// Creates an empty body. Layers such as `TimeoutLayer` and `CorsLayer` need it.
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.kind.project() {
            KindProj::Inner { body } => {
                let frame = body.poll_frame(cx);
                if let Poll::Ready(None | Some(Err(_))) = frame {
                    *this.hold = None;
                }
                frame
            }
            KindProj::Own { bytes } if bytes.is_empty() => Poll::Ready(None),
            KindProj::Own { bytes } => Poll::Ready(Some(Ok(Frame::data(mem::take(bytes))))),
        }
    }

    // Headers without bytes end the stream. gRPC calls such a response "trailers-only".
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Own { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Own { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
