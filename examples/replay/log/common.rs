//! The common and the combined log format.

use std::borrow::Cow;

use super::shortened;

/// The fields of these formats.
const FIELDS: &str = "address, identity, user, method, path, protocol, status, size, referer or agent";

/// A line. The combined format has two fields more. What follows them is ignored.
pub(super) struct CommonLine<'a> {
    address: &'a str,
    identity: &'a str,
    user: &'a str,
    pub(super) time: &'a str,
    /// The request line, such as `GET / HTTP/1.1`.
    request: Cow<'a, str>,
    status: &'a str,
    size: &'a str,
    /// The fields of the combined format, in quotes.
    rest: &'a str,
}

impl<'a> CommonLine<'a> {
    pub(super) fn parse(line: &'a str) -> Result<Self, String> {
        let (before, rest) = line
            .split_once(" [")
            .ok_or("it is neither JSON nor the common log format: no time in brackets")?;
        let fields: Vec<&str> = before.splitn(4, ' ').collect();
        let [address, identity, user] = fields[..] else {
            return Err(format!(
                "{:?} before the time: it must be 3 fields, address, identity and user",
                shortened(before)
            ));
        };
        let (time, rest) = rest.split_once("] ").ok_or("no end of the time in brackets")?;
        let (request, rest) = quoted(rest).ok_or("no request in quotes after the time")?;
        let mut words = rest.trim_start().splitn(3, ' ');
        let (status, size) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if status.len() != 3 || !status.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("status {:?}: it must be 3 digits", shortened(status)));
        }
        if size != "-" && (size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(format!("size {:?}: it must be a number or `-`", shortened(size)));
        }
        let line = Self {
            address,
            identity,
            user,
            time,
            request,
            status,
            size,
            rest: words.next().unwrap_or_default(),
        };
        // Such a request, for example a handshake of TLS on a port without it, reaches no service.
        match line.request_line() {
            Some(_) => Ok(line),
            None => Err(format!(
                "request {:?}: it must be a method, a path and a protocol",
                shortened(&line.request)
            )),
        }
    }

    /// Returns the method, the target and the protocol.
    fn request_line(&self) -> Option<[&str; 3]> {
        let (method, rest) = self.request.split_once(' ')?;
        let (target, protocol) = rest.rsplit_once(' ')?;
        let is_valid = !target.is_empty() && !target.contains(' ') && protocol.starts_with("HTTP/");
        is_valid.then_some([method, target, protocol])
    }

    /// Returns the value of a field, or `None` if it is `-` or missing.
    pub(super) fn field(&self, name: &str) -> Result<Option<Cow<'_, str>>, String> {
        let of_request = |index: usize| self.request_line().map_or("-", |parts| parts[index]);
        let value = match name {
            "address" => self.address.into(),
            "identity" => self.identity.into(),
            "user" => self.user.into(),
            "method" => of_request(0).into(),
            "path" => of_request(1).split('?').next().unwrap_or_default().into(),
            "protocol" => of_request(2).into(),
            "status" => self.status.into(),
            "size" => self.size.into(),
            "referer" => return Ok(quoted(self.rest).map(|(value, _)| value).filter(|value| value != "-")),
            "agent" => {
                let after = quoted(self.rest).map(|(_, rest)| rest);
                return Ok(after.and_then(quoted).map(|(value, _)| value).filter(|value| value != "-"));
            }
            _ => {
                let name = shortened(name);
                return Err(format!("no field {name:?}: a line of the common log format has {FIELDS}"));
            }
        };
        Ok(Some(value).filter(|value: &Cow<'_, str>| value != "-"))
    }
}

/// Returns the text in quotes at the beginning, with its escapes resolved, and what follows the quotes.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let text = text.trim_start().strip_prefix('"')?;
    let end = text.find(['"', '\\'])?;
    if text[end..].starts_with('"') {
        return Some((text[..end].into(), &text[end + 1..]));
    }
    let (mut value, mut rest) = (text.as_bytes()[..end].to_vec(), &text[end..]);
    loop {
        let next = rest.find(['"', '\\'])?;
        value.extend_from_slice(&rest.as_bytes()[..next]);
        let (mark, after) = rest[next..].split_at(1);
        if mark == "\"" {
            return Some((String::from_utf8_lossy(&value).into_owned().into(), after));
        }
        let escaped = after.chars().next()?;
        rest = &after[escaped.len_utf8()..];
        match escaped {
            'n' => value.push(b'\n'),
            'r' => value.push(b'\r'),
            't' => value.push(b'\t'),
            'x' => match rest.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                Some(byte) => {
                    value.push(byte);
                    rest = &rest[2..];
                }
                None => value.extend_from_slice(b"\\x"),
            },
            other => value.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}
