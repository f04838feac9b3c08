//! HTTP requests and responses without their bodies, so that no hook depends on a body's type.

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version};

/// An HTTP request without its body.
///
/// Every closure of a [`Builder`](crate::Builder) takes one, whatever the body of the service is.
#[derive(Clone, Copy, Debug)]
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
}

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
    /// Returns the first value of a header field, or `None` if the field is missing or its value is not visible ASCII.
    ///
    /// Do not make a partition key of it: a client could send a repeated or malformed field, which
    /// [`header`](crate::header) rejects.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the value of this type that an earlier layer has left in the request's extensions.
    pub fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&'a T> {
        self.extensions.get()
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
        }
    }
}

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }
}
