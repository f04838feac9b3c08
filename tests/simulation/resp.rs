//! The part of the Redis protocol that the simulation uses.

/// Takes the first complete command, an array of bulk strings, from the received bytes. Returns None if it is not complete.
pub fn take_command(bytes: &mut Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, String> {
    let mut rest = &bytes[..];
    let Some(parts) = take_number(&mut rest, b'*')? else { return Ok(None) };
    let mut command = Vec::new();
    for _ in 0..parts {
        let Some(length) = take_number(&mut rest, b'$')? else { return Ok(None) };
        let Some((part, after)) = rest.split_at_checked(length) else { return Ok(None) };
        let Some(after) = after.get(2..) else { return Ok(None) };
        command.push(part.to_vec());
        rest = after;
    }
    let taken = bytes.len() - rest.len();
    bytes.drain(..taken);
    Ok(Some(command))
}

/// Takes a line of a sign and a number.
fn take_number(rest: &mut &[u8], sign: u8) -> Result<Option<usize>, String> {
    let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let line = String::from_utf8_lossy(&rest[..end]).into_owned();
    *rest = &rest[end + 2..];
    let number = line.strip_prefix(char::from(sign)).and_then(|number| number.parse().ok());
    number.map(Some).ok_or(line)
}

pub fn simple(text: &str) -> Vec<u8> {
    format!("+{text}\r\n").into_bytes()
}

pub fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

pub fn integer(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

pub fn array(parts: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", parts.len()).into_bytes(), parts.concat()].concat()
}

/// Encodes a map of one entry.
pub fn map(key: &str, value: &str) -> Vec<u8> {
    [b"%1\r\n".to_vec(), bulk(key.as_bytes()), bulk(value.as_bytes())].concat()
}
