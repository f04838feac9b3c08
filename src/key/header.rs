//! The key in a header.

use std::borrow::Cow;

use http::HeaderName;

use super::{KeyError, KeyExtractor, PartitionKey, forwarded::reports_address, kinds};
use crate::{error::ConfigError, head::Head};

/// The value of a header as the key. Returned by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    kind: Box<str>,
}

/// Counts by the value of this header: an API key, for example.
///
/// White space around the value is not a part of the key: a server of HTTP/1.1 removes it, and one of HTTP/2 may not. The rest
/// is compared byte for byte. If one value of a header has several spellings, such as `Host` in upper and lower case, write a
/// closure that returns one of them. Over HTTP/2, the host is in `:authority`, and a request usually has no `Host`: the closure must read
/// `head.uri.authority()` first.
///
/// A request without the header, or with an empty value, has no key of this kind. A request with several values is
/// malformed, because another part of the service might read another one of them.
///
/// # Authorization
///
/// The key of `authorization` and `proxy-authorization` is the scheme in lower case, one space, and the token (RFC 9110,
/// section 11.4). So `bearer abc` and `BEARER  abc` are one key, and `Bearer ABC` is another one. A token without a scheme is
/// another key: `abc` is not `Bearer abc`. If a verifier accepts both, count by user, as below. More than one word after the scheme is malformed: a verifier may ignore a part of them, and the parameters of
/// schemes such as `Digest` differ in every request.
///
/// A user may have several tokens, and some verifiers accept several encodings of one token. To count by user, use
/// [`extension`](crate::extension).
///
/// # Unverified headers
///
/// **An unverified header is not an identity.** The client writes it, and can invent a new value, and so a new quota, for every
/// request. Limit by a header alone only if an earlier layer rejects wrong values. Otherwise also limit the address:
/// [`also`](crate::RateLimitLayerBuilder::also)`(`[`limit`](crate::limit)`(`[`peer_ip`](crate::peer_ip)`()).policy(..))`.
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
    let kind = kinds::header(name.as_str());
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
            return Err(KeyError::malformed(what, "the header occurs more than once"));
        }
        let value = value.as_bytes().trim_ascii();
        if value.is_empty() {
            return Ok(None);
        }
        let value = canonical(name.as_str(), value).ok_or_else(|| KeyError::Malformed {
            what: format!("header {name}"),
            why: "it must be a scheme and one token, such as `Bearer abc`".to_owned(),
        })?;
        Ok(Some(PartitionKey::new(kind, value)))
    }

    fn missing(&self, _head: &Head<'_>) -> String {
        format!("header {:?}", self.name.as_str())
    }
}

/// Returns the one spelling of a value without white space around it, or `None` if it is malformed.
#[inline]
pub(super) fn canonical<'a>(name: &str, value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    if matches!(name, "authorization" | "proxy-authorization") {
        credentials(value)
    } else {
        Some(value.into())
    }
}

/// Returns a scheme and a token in one spelling, or `None` if the value has more than two words. A single word may be a token.
fn credentials(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(end) = value.iter().position(u8::is_ascii_whitespace) else { return Some(value.into()) };
    let (scheme, token) = value.split_at(end);
    let token = token.trim_ascii_start();
    let is_word = !token.iter().any(u8::is_ascii_whitespace);
    is_word.then(|| [&scheme.to_ascii_lowercase(), &b" "[..], token].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(values: &[&str]) -> Result<Option<PartitionKey>, KeyError> {
        extract_from("X-Api-Key", values)
    }

    fn extract_from(name: &str, values: &[&str]) -> Result<Option<PartitionKey>, KeyError> {
        let mut request = http::Request::builder();
        for value in values {
            request = request.header(name, *value);
        }
        header(name).unwrap().extract(&(&request.body(()).unwrap()).into())
    }

    #[test]
    fn value_is_key_unless_empty() {
        assert_eq!(extract(&["alice"]), Ok(Some(PartitionKey::new("header:x-api-key", "alice"))));
        assert_eq!(extract(&[" \talice\t "]), extract(&["alice"]));
        assert_ne!(extract(&["a lice"]), extract(&["alice"]));
        for values in [&[][..], &[""], &[" "], &["\t "]] {
            assert_eq!(extract(values), Ok(None), "{values:?}");
        }
    }

    #[test]
    fn credentials_have_one_spelling() {
        for name in ["Authorization", "Proxy-Authorization"] {
            let kind = format!("header:{}", name.to_ascii_lowercase());
            for (value, key) in [
                ("Bearer abC=", "bearer abC="),
                (" bEARER \t abC= ", "bearer abC="),
                ("Bearer ABC=", "bearer ABC="),
                ("Basic abC=", "basic abC="),
                ("Key", "Key"),
                ("\tkey ", "key"),
            ] {
                assert_eq!(
                    extract_from(name, &[value]),
                    Ok(Some(PartitionKey::new(&kind, key))),
                    "{value:?}"
                );
            }
            assert_eq!(extract_from(name, &[" \t"]), Ok(None));
            for value in ["Bearer abc x", "Bearer abc\tx", r#"Digest username="a", response="b""#] {
                let error = extract_from(name, &[value]).unwrap_err().to_string();
                let expected = format!(
                    "malformed rate limit key: {}: it must be a scheme and one token, such as `Bearer abc`",
                    kind.replace(':', " ")
                );
                assert_eq!(error, expected, "{value:?}");
            }
        }
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
        assert_eq!(
            error.to_string(),
            "header name \"x api key\": it must be an HTTP field name: one or more letters, digits and !#$%&'*+-.^_`|~"
        );
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
