//! The key in a header.

use http::HeaderName;

use super::{KeyError, KeyExtractor, PartitionKey, forwarded::reports_address};
use crate::{error::ConfigError, head::Head};

/// The value of a header as the key. Returned by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    kind: Box<str>,
}

/// Counts by the value of this header, byte for byte: an API key, for example.
///
/// A request without the header, or with an empty value, has no key of this kind. A request with several values is
/// malformed, because another part of the service might read another one of them.
///
/// **An unverified header is not an identity.** The client writes it, and can invent a new value, and so a new quota, for every
/// request. Limit by a header alone only if an earlier layer rejects wrong values. Otherwise also limit the address:
/// [`also`](crate::Builder::also)`(`[`limit`](crate::limit)`(`[`peer_ip`](crate::peer_ip)`()).policy(..))`.
///
/// **A client can also write the value of another client**, unless the value is a secret: then it uses up the quota of that client, also
/// by requests that are rejected later, and reads its usage in the response. For a user or a tenant, use
/// [`extension`](crate::extension) [after the authentication](crate::guide::keys#limit-tenants-and-users-after-authentication).
///
/// # Errors
///
/// Returns [`ConfigError::HeaderName`] if the name is not a valid header name. Returns [`ConfigError::ForwardedHeader`] for a
/// header in which proxies report the address of the client, such as `x-forwarded-for`: use
/// [`client_ip`](super::client_ip), which trusts only the stated proxies.
pub fn header(name: &str) -> Result<Header, ConfigError> {
    let name = HeaderName::try_from(name)
        .map_err(|source| ConfigError::HeaderName { name: name.to_owned(), source })?;
    if reports_address(&name) {
        return Err(ConfigError::ForwardedHeader { name: name.as_str().to_owned() });
    }
    let kind = format!("header:{name}").into();
    Ok(Header { name, kind })
}

impl KeyExtractor for Header {
    fn extract(&self, head: &Head<'_>) -> Result<Option<PartitionKey>, KeyError> {
        let Self { name, kind } = self;
        let headers = head.headers;
        let Some(value) = headers.get(name) else { return Ok(None) };
        // Usually no header occurs more than once.
        let may_repeat = headers.len() > headers.keys_len();
        if may_repeat && headers.get_all(name).iter().nth(1).is_some() {
            let what = format!("header {name}");
            return Err(KeyError::Malformed { what, why: "the header occurs more than once".to_owned() });
        }
        let value = Some(value.as_bytes()).filter(|value| !value.is_empty());
        Ok(value.map(|value| PartitionKey::new(kind, value)))
    }

    fn missing(&self, _head: &Head<'_>) -> String {
        format!("header {:?}", self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(values: &[&str]) -> Result<Option<PartitionKey>, KeyError> {
        let mut request = http::Request::builder();
        for value in values {
            request = request.header("X-Api-Key", *value);
        }
        header("x-api-key").unwrap().extract(&(&request.body(()).unwrap()).into())
    }

    #[test]
    fn value_is_key_unless_empty() {
        assert_eq!(extract(&["alice"]), Ok(Some(PartitionKey::new("header:x-api-key", "alice"))));
        assert_eq!(extract(&[]), Ok(None));
        assert_eq!(extract(&[""]), Ok(None));
    }

    #[test]
    fn repeated_header_is_malformed() {
        let error = extract(&["alice", "bob"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "malformed rate limit key: header x-api-key: the header occurs more than once"
        );
    }

    #[test]
    fn invalid_name_is_an_error() {
        let error = header("x api key").unwrap_err();
        assert_eq!(error.to_string(), r#"header name "x api key": not a valid HTTP field name"#);
    }

    #[test]
    fn header_of_proxy_is_an_error() {
        for name in ["X-Forwarded-For", "forwarded", "CF-Connecting-IP", "x-real-ip"] {
            let error = header(name).unwrap_err();
            assert!(matches!(error, ConfigError::ForwardedHeader { .. }), "{error:?}");
            let text = format!("header {:?} as a key: a client can write any address", name.to_lowercase());
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }
}
