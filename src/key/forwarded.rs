//! The headers in which proxies report the address of the client.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};

use super::KeyError;

/// The header in which the trusted proxies report the address of the client.
///
/// | header | value | written by |
/// | --- | --- | --- |
/// | `X-Forwarded-For` | a list of addresses | most proxies and load balancers: each appends the address of its peer |
/// | `Forwarded` | a list, RFC 7239 | proxies that implement the standard |
/// | all others | one address | the vendor's proxy, which overwrites what a client has sent |
///
/// Choose a header that *every* trusted proxy writes. A proxy passes on a header that it does not know, as the client wrote it.
/// An address may have a port, as in `192.0.2.1:4711` and `[2001:db8::1]:4711`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`: a list, to which each proxy appends the address of its peer. The default.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239): a list, to which each proxy appends an element with the parameter `for`. An obfuscated identifier
    /// or `unknown` in place of an address is malformed, and so is a line with more than 256 elements.
    Forwarded,
    /// `X-Real-IP`: one address, as nginx is usually configured to write it.
    XRealIp,
    /// `CF-Connecting-IP`: one address, written by Cloudflare.
    CfConnectingIp,
    /// `True-Client-IP`: one address, written by Akamai, and by Cloudflare if enabled.
    TrueClientIp,
    /// `Fly-Client-IP`: one address, written by Fly.io.
    FlyClientIp,
    /// `CloudFront-Viewer-Address`: one address and a port, without brackets also for IPv6, written by Amazon CloudFront.
    CloudFrontViewerAddress,
    /// `X-Azure-SocketIP`: one address, written by Azure Front Door. (A client can write `X-Azure-ClientIP`.)
    XAzureSocketIp,
    /// `X-Envoy-External-Address`: one address, written by Envoy.
    XEnvoyExternalAddress,
    /// Another header with one address. The trusted proxies must overwrite it.
    Other(HeaderName),
}

/// The names of all headers above, and of others with the same purpose.
const NAMES: [&str; 14] = [
    "forwarded",
    "x-forwarded-for",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "fly-client-ip",
    "cloudfront-viewer-address",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-envoy-external-address",
    "fastly-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
];

/// Returns whether the purpose of a header is to report the address of a client.
pub(super) fn reports_address(name: &HeaderName) -> bool {
    NAMES.contains(&name.as_str())
}

impl ForwardedHeader {
    /// Returns the name of the header in lower case.
    pub fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::XRealIp => "x-real-ip",
            Self::CfConnectingIp => "cf-connecting-ip",
            Self::TrueClientIp => "true-client-ip",
            Self::FlyClientIp => "fly-client-ip",
            Self::CloudFrontViewerAddress => "cloudfront-viewer-address",
            Self::XAzureSocketIp => "x-azure-socketip",
            Self::XEnvoyExternalAddress => "x-envoy-external-address",
            Self::Other(name) => name.as_str(),
        }
    }

    /// Returns whether each proxy appends an address.
    pub(super) fn is_list(&self) -> bool {
        matches!(self, Self::XForwardedFor | Self::Forwarded)
    }

    /// Calls `each` with the addresses of all lines of the header, in canonical form, from right to left, as long as it returns true. An
    /// entry further to the left may be no address: a client can write anything there. Only the syntax of a line of `Forwarded` is
    /// verified as a whole, because a quoted string is read from left to right.
    pub(super) fn walk(
        &self,
        headers: &HeaderMap,
        mut each: impl FnMut(IpAddr) -> bool,
    ) -> Result<(), KeyError> {
        let lines = headers.get_all(self.name());
        if !self.is_list() && lines.iter().nth(1).is_some() {
            return Err(self.malformed("the header occurs more than once"));
        }
        for line in lines.iter().rev() {
            let line = line.to_str().map_err(|_| self.malformed("it is not visible ASCII"))?;
            let goes_on = match self {
                Self::XForwardedFor => self.walk_entries(line.rsplit(',').map(node), &mut each),
                Self::Forwarded => {
                    let elements = elements(line).ok_or_else(|| {
                        self.malformed(&format!(
                            "it violates RFC 7239, or has more than {MAX_ELEMENTS} elements"
                        ))
                    })?;
                    let entries =
                        elements.iter().rev().map(|element| node(without_port(element.as_deref()?)));
                    self.walk_entries(entries, &mut each)
                }
                Self::CloudFrontViewerAddress => {
                    let address = line.rsplit_once(':').and_then(|(address, _port)| node(address));
                    self.walk_entries([address], &mut each)
                }
                _ => self.walk_entries([node(line)], &mut each),
            }?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn walk_entries(
        &self,
        entries: impl IntoIterator<Item = Option<IpAddr>>,
        each: &mut impl FnMut(IpAddr) -> bool,
    ) -> Result<bool, KeyError> {
        for entry in entries {
            let address = entry.ok_or_else(|| self.malformed("an entry is not an IP address"))?;
            if !each(address) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn malformed(&self, why: &str) -> KeyError {
        KeyError::malformed(format!("header {}", self.name()), why)
    }
}

/// Parses an address with or without a port. Returns it in canonical form.
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let address = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .or_else(|| in_brackets().map(IpAddr::V6))?;
    Some(address.to_canonical())
}

/// Removes an obfuscated port (RFC 7239, section 6.3), such as `:_hidden`.
fn without_port(node: &str) -> &str {
    node.rsplit_once(":_").map_or(node, |(address, _port)| address)
}

/// The number of elements of a `Forwarded` line: more than the proxies in front of a service, and a bound on the memory for a line.
const MAX_ELEMENTS: usize = 256;

/// Returns the parameter `for` of each element of a `Forwarded` line (RFC 7239, section 4), or `None` if the line is malformed or has
/// too many elements.
fn elements(line: &str) -> Option<Vec<Option<String>>> {
    const BLANK: [char; 2] = [' ', '\t'];
    let mut elements = Vec::new();
    let mut rest = line;
    loop {
        let mut node = None;
        loop {
            rest = rest.trim_start_matches(BLANK);
            if !rest.is_empty() && !rest.starts_with([',', ';']) {
                let (name, after) = rest.split_once('=')?;
                let (value, after) = value(after)?;
                let is_token =
                    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
                let is_repeated = name.eq_ignore_ascii_case("for") && node.replace(value).is_some();
                if !is_token || is_repeated {
                    return None;
                }
                rest = after.trim_start_matches(BLANK);
            }
            match rest.strip_prefix(';') {
                Some(after) => rest = after,
                None => break,
            }
        }
        if elements.len() == MAX_ELEMENTS {
            return None;
        }
        elements.push(node);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => return rest.is_empty().then_some(elements),
        }
    }
}

/// Returns a token or the contents of a quoted string at the beginning of a text, and the text after it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ';', ' ', '\t', '"']).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_owned(), &text[end..]));
    };
    let (mut value, mut characters) = (String::new(), quoted.chars());
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(characters.next()?),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all addresses of these lines, from right to left.
    fn addresses(header: &ForwardedHeader, lines: &[&str]) -> Result<Vec<String>, String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            let name = HeaderName::try_from(header.name()).unwrap();
            headers.append(name, line.parse().unwrap());
        }
        let mut found = Vec::new();
        let walked = header.walk(&headers, |address| {
            found.push(address.to_string());
            true
        });
        walked.map(|()| found).map_err(|error| error.to_string())
    }

    #[test]
    fn list_is_read_from_right_to_left_over_all_lines() {
        let expected = ["192.0.2.3", "2001:db8::2", "192.0.2.1"].map(str::to_owned).to_vec();
        let lines = ["192.0.2.1:80", "[2001:db8::2]:80 ,\t::ffff:192.0.2.3"];
        assert_eq!(addresses(&ForwardedHeader::XForwardedFor, &lines), Ok(expected.clone()));
        let lines = [
            r#"For=192.0.2.1;proto=https;by="a,;\"""#,
            r#"for="[2001:db8::2]:_p" , ;FOR="192.0.2.3:80";host=x"#,
        ];
        assert_eq!(addresses(&ForwardedHeader::Forwarded, &lines), Ok(expected));
    }

    #[test]
    fn entry_without_address_is_malformed() {
        for line in
            ["", "192.0.2.1,", "unknown", "192.0.2.1 192.0.2.2", "192.0.2.256", "fe80::1%eth0", "a:80"]
        {
            let error = addresses(&ForwardedHeader::XForwardedFor, &[line]).unwrap_err();
            assert_eq!(
                error, "malformed rate limit key: header x-forwarded-for: an entry is not an IP address",
                "{line}"
            );
        }
        for line in ["for=unknown", "for=_hidden", "proto=https", "", "for=192.0.2.1,"] {
            assert!(addresses(&ForwardedHeader::Forwarded, &[line]).is_err(), "{line}");
        }
    }

    #[test]
    fn invalid_forwarded_syntax_is_malformed() {
        for line in [
            r#"for="192.0.2.1"#,
            r#"for="192.0.2.1\"#,
            r#"for="", for="192.0.2.1"x"#,
            r#"for=", for="[2001:db8::1]""#,
            "for=192.0.2.1;for=192.0.2.2",
            "for",
            "for=",
            "for=192.0.2.1 for=192.0.2.2",
            "f or=192.0.2.1",
        ] {
            let error = addresses(&ForwardedHeader::Forwarded, &[line]).unwrap_err();
            assert_eq!(
                error,
                "malformed rate limit key: header forwarded: it violates RFC 7239, or has more than 256 elements",
                "{line}"
            );
        }
    }

    /// 400 kB of commas took 10 MB.
    #[test]
    fn number_of_forwarded_elements_is_bounded() {
        let line = |elements: usize| vec!["for=192.0.2.1"; elements].join(",");
        let read = |line: &str| addresses(&ForwardedHeader::Forwarded, &[line]);
        assert_eq!(read(&line(256)).unwrap().len(), 256);
        for line in [line(257), ",".repeat(400_000) + "for=192.0.2.1"] {
            assert!(read(&line).unwrap_err().contains("more than 256 elements"));
        }
    }

    #[test]
    fn vendor_header_has_one_address() {
        let name = HeaderName::from_static("x-my-ip");
        for header in [
            ForwardedHeader::XRealIp,
            ForwardedHeader::CfConnectingIp,
            ForwardedHeader::TrueClientIp,
            ForwardedHeader::FlyClientIp,
            ForwardedHeader::XAzureSocketIp,
            ForwardedHeader::XEnvoyExternalAddress,
            ForwardedHeader::Other(name),
        ] {
            assert_eq!(
                addresses(&header, &["2001:db8::1"]),
                Ok(vec!["2001:db8::1".to_owned()]),
                "{header:?}"
            );
            assert!(addresses(&header, &["192.0.2.1, 192.0.2.2"]).is_err(), "{header:?}");
            assert!(addresses(&header, &["192.0.2.1", "192.0.2.2"]).is_err(), "{header:?}");
        }
        let cloudfront = |line| addresses(&ForwardedHeader::CloudFrontViewerAddress, &[line]);
        assert_eq!(cloudfront("192.0.2.1:46532"), Ok(vec!["192.0.2.1".to_owned()]));
        assert_eq!(cloudfront("2001:db8::1:46532"), Ok(vec!["2001:db8::1".to_owned()]));
        assert!(cloudfront("192.0.2.1").is_err());
    }
}
