//! HTTP requests and responses without their bodies, so that no hook depends on a body's type.

use std::{any::Any, fmt, sync::Arc};

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request, response};

use crate::lock::Lock;

/// An HTTP request without its body.
///
/// Every closure of a [`RateLimitLayerBuilder`](crate::RateLimitLayerBuilder) takes one, whatever the body of the service is. To use a key
/// extractor or a cost elsewhere, convert a reference to a [`Request`], or to its [`Parts`](request::Parts):
///
/// ```
/// # #[cfg(feature = "axum")]
/// # mod example {
/// use std::net::IpAddr;
/// use axum::{extract::FromRequestParts, http::request::Parts};
/// use tower_sliding_window::{Head, Rejection, key::client_ip};
///
/// /// The address of the client.
/// struct ClientAddress(Option<IpAddr>);
///
/// impl<S: Sync> FromRequestParts<S> for ClientAddress {
///     type Rejection = Rejection;
///
///     async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
///         Ok(Self(client_ip().address(&Head::from(&*parts))?))
///     }
/// }
/// # }
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The HTTP version.
    pub version: Version,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The extensions, in which earlier layers leave values.
    pub extensions: &'a Extensions,
    lookups: Option<&'a Lookups>,
}

/// The shared values that a layer has looked up for one request. A value may change between two lookups, but both return the
/// same one.
#[derive(Default)]
pub(crate) struct Lookups(Lock<Vec<(usize, Arc<dyn Any + Send + Sync>)>>);

/// An HTTP response without its body. It is made of a reference to a [`Response`], or to its [`Parts`](response::Parts).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The extensions, in which the inner service leaves values.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// Returns the first value of a header field without the white space around it, or `None` if the field is missing or its
    /// value is not visible ASCII.
    ///
    /// Do not make a partition key of it: a client could send a repeated or malformed field, which
    /// [`header`](crate::header) rejects.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok().map(str::trim_ascii)
    }

    /// Returns the value of this type that an earlier layer has left in the request's extensions.
    pub fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&'a T> {
        self.extensions.get()
    }

    /// Returns the same head, whose lookups are kept.
    pub(crate) fn with_lookups(self, lookups: &'a Lookups) -> Self {
        Self { lookups: Some(lookups), ..self }
    }

    /// Returns the value that the first lookup by this identifier has returned for the request.
    pub(crate) fn look_up<T: Send + Sync + 'static>(
        &self,
        id: usize,
        value: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let Some(Lookups(values)) = self.lookups else { return value() };
        let mut values = values.lock();
        let known = values.iter().find(|(known, _)| *known == id);
        if let Some(known) = known.and_then(|(_, value)| value.clone().downcast().ok()) {
            return known;
        }
        let value = value();
        values.push((id, value.clone()));
        value
    }
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("method", &self.method)
            .field("uri", &self.uri)
            .field("version", &self.version)
            .field("headers", &self.headers)
            .field("extensions", &self.extensions)
            .finish()
    }
}

impl<'a, B> From<&'a Request<B>> for Head<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
            lookups: None,
        }
    }
}

impl<'a> From<&'a request::Parts> for Head<'a> {
    fn from(parts: &'a request::Parts) -> Self {
        let request::Parts { method, uri, version, headers, extensions, .. } = parts;
        Self { method, uri, version: *version, headers, extensions, lookups: None }
    }
}

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }
}

impl<'a> From<&'a response::Parts> for ResponseHead<'a> {
    fn from(parts: &'a response::Parts) -> Self {
        Self { status: parts.status, headers: &parts.headers, extensions: &parts.extensions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_head_of_their_message() {
        let request =
            Request::post("/upload").version(Version::HTTP_2).header("x-size", "7").extension("user");
        let (request, response) =
            (request.body(()).unwrap(), Response::builder().status(404).header("x-size", "8"));
        let response = response.extension("units").body(()).unwrap();
        let texts = (format!("{:?}", Head::from(&request)), format!("{:?}", ResponseHead::from(&response)));
        let (request, response) = (request.into_parts().0, response.into_parts().0);
        let (of_request, of_response) = (Head::from(&request), ResponseHead::from(&response));
        assert_eq!((format!("{of_request:?}"), format!("{of_response:?}")), texts);
        assert_eq!((of_request.extension(), of_response.extensions.get()), (Some(&"user"), Some(&"units")));
    }

    #[test]
    fn header_value_has_no_white_space_around_it() {
        let mut request = Request::new(());
        request.headers_mut().insert("x-size", http::HeaderValue::from_static("\t 7 "));
        assert_eq!(Head::from(&request).header("x-size"), Some("7"));
    }
}
