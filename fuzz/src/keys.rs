//! Keys and costs of any requests: headers, cookies, paths and route patterns, against simple references.
//!
//! The first byte of the input is the extractor. The rest is lines of text, whose meaning depends on it.

use http::{HeaderName, HeaderValue, Method, Request, Uri};
use tower_sliding_window::{
    CostFunction, Costs, KeyExtractor, PartitionKey, RouteCosts,
    cost::by_content_length,
    header,
    key::{KeyError, constant, cookie, method, path_param},
};

pub(crate) const DICTIONARY: &[&[u8]] = &[
    b"\n",
    b"id=",
    b"; ",
    b"\"",
    b"%69d=alice",
    b"%61",
    b"%2",
    b"%",
    b"\xff",
    b"/{id}",
    b"/{*id}",
    b"/{{id}}",
    b"/a{id}b",
    b"/:id",
    b"/*id",
    b"{id}",
    b"//",
    b"/users/{id}",
    b"/users/alice",
    b"?q=1",
    b"18446744073709551615",
    b"x-api-key",
    b"Bearer ",
    b" \t",
];

pub(crate) fn run(data: &[u8]) {
    let [extractor, rest @ ..] = data else { return };
    let lines: Vec<&[u8]> = rest.split(|byte| *byte == b'\n').collect();
    match extractor % 8 {
        0 if extractor / 8 % 2 == 1 => authorization_is_scheme_and_token(&lines),
        0 => header_is_value(&lines),
        1 | 2 => cookie_is_value(&lines),
        3 | 4 => path_parameter_is_segment(&lines),
        5 => route_costs_follow_patterns(&lines),
        6 => content_length_costs_units(&lines),
        _ => parts_are_kept(&lines),
    }
}

fn request(name: HeaderName, lines: &[&[u8]]) -> Request<()> {
    let mut request = Request::new(());
    for value in lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        request.headers_mut().append(name.clone(), value);
    }
    request
}

fn values<'a>(request: &'a Request<()>, name: &HeaderName) -> Vec<&'a [u8]> {
    request.headers().get_all(name).iter().map(HeaderValue::as_bytes).collect()
}

fn assert_key(found: Result<Option<PartitionKey>, KeyError>, kind: &str, values: &[Vec<u8>], what: &str) {
    match values {
        [] => assert_eq!(found, Ok(None), "{what}"),
        [value] if value.is_empty() => assert_eq!(found, Ok(None), "{what}"),
        [value] => assert_eq!(found, Ok(Some(PartitionKey::new(kind, value))), "{what}"),
        _ => assert!(matches!(found, Err(KeyError::Malformed { .. })), "{what}: {found:?}"),
    }
}

fn header_is_value(lines: &[&[u8]]) {
    // Any name, which may be invalid.
    let _ = str::from_utf8(lines[0]).map(header);
    let name = HeaderName::from_static("x-api-key");
    let request = request(name.clone(), lines);
    let found = header("x-api-key").expect("a header").extract(&(&request).into());
    let trimmed = |value: &[u8]| match (value.iter().position(is_visible), value.iter().rposition(is_visible))
    {
        (Some(first), Some(last)) => value[first..=last].to_vec(),
        _ => Vec::new(),
    };
    let values: Vec<Vec<u8>> = values(&request, &name).into_iter().map(trimmed).collect();
    assert_key(found, "header:x-api-key", &values, &format!("{values:?}"));
}

fn is_visible(byte: &u8) -> bool {
    !b" \t".contains(byte)
}

fn authorization_is_scheme_and_token(lines: &[&[u8]]) {
    let name = http::header::AUTHORIZATION;
    let request = request(name.clone(), lines);
    let found = header("authorization").expect("a header").extract(&(&request).into());
    let values = values(&request, &name);
    let words = |value: &&[u8]| {
        let words = value.split(|byte| !is_visible(byte)).filter(|word| !word.is_empty());
        words.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let is_malformed = matches!(&values[..], [value] if words(value).len() > 2);
    if is_malformed {
        return assert!(matches!(found, Err(KeyError::Malformed { .. })), "{values:?}: {found:?}");
    }
    let joined = values.iter().map(|value| match &words(value)[..] {
        [scheme, token] => [&scheme.to_ascii_lowercase(), &b" "[..], token].concat(),
        words => words.concat(),
    });
    assert_key(found, "header:authorization", &joined.collect::<Vec<_>>(), &format!("{values:?}"));
}

fn cookie_is_value(lines: &[&[u8]]) {
    let _ = str::from_utf8(lines[0]).map(cookie);
    let request = request(http::header::COOKIE, lines);
    let found = cookie("id").expect("a cookie").extract(&(&request).into());
    let mut expected = Vec::new();
    for line in values(&request, &http::header::COOKIE) {
        for pair in line.split(|byte| *byte == b';') {
            let Some(at) = pair.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
            if percent_decoded(name) == b"id" {
                let is_quoted = value.len() >= 2 && value.starts_with(b"\"") && value.ends_with(b"\"");
                let value = if is_quoted { &value[1..value.len() - 1] } else { value };
                expected.push(percent_decoded(value));
            }
        }
    }
    assert_key(found, "cookie:id", &expected, &format!("{lines:?}"));
}

fn percent_decoded(mut bytes: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::new();
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        decoded.push(*first);
        if let (b'%', [high, low, rest @ ..]) = (first, rest)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            decoded.pop();
            decoded.push((high * 16 + low) as u8);
            bytes = rest;
        }
    }
    decoded
}

/// Returns the value of `{id}` in a path of a pattern whose other segments are texts. `None` for any other pattern.
fn parameter<'p>(pattern: &str, path: &'p str) -> Option<Option<&'p str>> {
    let mut value = None;
    let mut matches = pattern.split('/').count() == path.split('/').count();
    for (segment, given) in pattern.split('/').zip(path.split('/')) {
        if segment == "{id}" && value.is_none() {
            value = Some(given);
            matches &= !given.is_empty();
        } else if segment.contains(['{', '}']) {
            return None;
        } else {
            matches &= segment == given;
        }
    }
    Some(value.filter(|_| matches))
}

fn path_parameter_is_segment(lines: &[&[u8]]) {
    let [pattern, paths @ ..] = lines else { return };
    let Ok(pattern) = str::from_utf8(pattern) else { return };
    let Ok(by_id) = path_param("id", [pattern]) else { return };
    for path in paths {
        let Ok(uri) = Uri::try_from(*path) else { continue };
        let mut request = Request::new(());
        *request.uri_mut() = uri.clone();
        let found = by_id.extract(&(&request).into()).expect("a path is never malformed");
        if let Some(value) = parameter(pattern, uri.path()) {
            let decoded = value.map(|value| percent_decoded(value.as_bytes()));
            let expected = decoded.map(|value| PartitionKey::new("path:id", value));
            assert_eq!(found, expected, "{pattern:?} {uri}");
        }
    }
}

fn route_costs_follow_patterns(lines: &[&[u8]]) {
    let [first, second, paths @ ..] = lines else { return };
    let (Ok(first), Ok(second)) = (str::from_utf8(first), str::from_utf8(second)) else { return };
    let Ok(costs) = RouteCosts::new().route(first, 2) else { return };
    // It may conflict with the first one.
    let both = costs.clone().post(second, 3);
    assert!(!format!("{both:?}").is_empty());
    for path in paths {
        let Ok(uri) = Uri::try_from(*path) else { continue };
        for method in [Method::GET, Method::POST, Method::HEAD] {
            let mut request = Request::new(());
            (*request.uri_mut(), *request.method_mut()) = (uri.clone(), method.clone());
            let cost = |costs: &RouteCosts| costs.cost(&(&request).into());
            if parameter(first, uri.path()).flatten().is_some() {
                assert_eq!(cost(&costs), Costs::from(2), "{first:?} {uri}");
            }
            if let Ok(both) = &both {
                let cost = cost(both);
                let is_known = [1, 2, 3].into_iter().any(|units| cost == Costs::from(units));
                let is_of_post = cost == Costs::from(3);
                assert!(is_known && (!is_of_post || method == Method::POST), "{second:?} {method} {uri}");
            }
        }
    }
}

fn content_length_costs_units(lines: &[&[u8]]) {
    let name = http::header::CONTENT_LENGTH;
    let request = request(name.clone(), &lines[..1]);
    for bytes_per_unit in [1, 1_000, u64::MAX] {
        let by_length = by_content_length(bytes_per_unit).expect("a size").otherwise(77);
        let cost = by_length.cost(&(&request).into());
        let length =
            values(&request, &name).first().and_then(|line| str::from_utf8(line).ok()?.parse::<u64>().ok());
        let units = length.map(|length| {
            let units = u128::from(length).div_ceil(u128::from(bytes_per_unit)).max(1);
            units.min(u128::from(u32::MAX)) as u32
        });
        assert_eq!(cost, Costs::from(units.unwrap_or(77)), "{lines:?}");
    }
}

/// A key contains its parts as they are, and no other key equals it.
fn parts_are_kept(lines: &[&[u8]]) {
    let kind = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
    let parts: Vec<(String, &[u8])> =
        lines.chunks(2).map(|part| (kind(part[0]), *part.last().unwrap_or(&part[0]))).collect();
    let keys = parts.iter().map(|(kind, value)| PartitionKey::new(kind, value));
    let key = keys.reduce(|key, part| key.and(&part)).expect("a part");
    assert!(key.parts().eq(parts.iter().map(|(kind, value)| (&**kind, *value))));
    assert!(key.percentile() < 100);
    let joined = PartitionKey::new(
        &parts[0].0,
        parts.iter().flat_map(|(_, value)| value.iter().copied()).collect::<Vec<_>>(),
    );
    assert_eq!(joined == key, parts.len() == 1);
    assert!(format!("{key:?}").starts_with("PartitionKey("));
    // A combination has the parts of both.
    let both = constant("a", "b").and(method()).or(constant("c", "d"));
    let request = Request::new(());
    let found = both.extract(&(&request).into()).expect("a key").expect("a key");
    assert_eq!(found, PartitionKey::new("a", "b").and(&PartitionKey::new("method", "GET")));
}
