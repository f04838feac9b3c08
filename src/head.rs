//! HTTP requests and responses without their bodies, so that no hook depends on a body's type.

use std::{any::Any, fmt, sync::Arc};

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version};

use crate::lock::Lock;

/// An HTTP request without its body.
///
/// Every closure of a [`RateLimitLayerBuilder`](crate::RateLimitLayerBuilder) takes one, whatever the body of the service is.
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

/// An HTTP response without its body.
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

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_value_has_no_white_space_around_it() {
        let mut request = Request::new(());
        request.headers_mut().insert("x-size", http::HeaderValue::from_static("\t 7 "));
        assert_eq!(Head::from(&request).header("x-size"), Some("7"));
    }
}
