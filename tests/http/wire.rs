//! An app on a loopback socket, and a client that returns the raw response.

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

/// An axum app. Its server stops when this value is dropped.
pub struct Site {
    address: SocketAddr,
    server: JoinHandle<()>,
}

/// The response of a server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The header fields, with names in lower case, in the order of the response.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Site {
    pub async fn serve(app: Router) -> Self {
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let (address, listener) = listen().await;
        Self { address, server: tokio::spawn(async { axum::serve(listener, app).await.unwrap() }) }
    }

    pub async fn serve_without_connect_info(app: Router) -> Self {
        let (address, listener) = listen().await;
        Self { address, server: tokio::spawn(async { axum::serve(listener, app).await.unwrap() }) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        request(self.address, "GET", path, headers).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        request(self.address, method, path, headers).await
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn listen() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// Sends one request on a new connection.
pub async fn request(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    request_with_body(address, method, path, headers, "").await
}

/// Sends one request with a body on a new connection.
pub async fn request_with_body(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text += "\r\n";
    text += body;
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(text.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>(bytes)
    };
    // The timeout limits a hanging server to one failed test.
    let bytes = timeout(Duration::from_secs(30), exchange).await.expect("an answer").unwrap();
    Answer::parse(&String::from_utf8(bytes).unwrap())
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let (status_line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let field = |line: &str| {
            let (name, value) = line.split_once(':').expect("a field");
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Self { status, headers: fields.lines().map(field).collect(), body: body.to_owned() }
    }

    /// Returns the value of a field.
    ///
    /// # Panics
    ///
    /// Panics if the field is in several lines. Many clients read only one of them.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(field, _)| field == name).map(|(_, value)| &**value);
        let (first, second) = (values.next(), values.next());
        assert_eq!(second, None, "{name} is in several lines: {self:?}");
        first
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns whether the response has a field of a rate limit.
    pub fn has_limit_fields(&self) -> bool {
        ["ratelimit", "ratelimit-policy", "retry-after"].iter().any(|name| self.header(name).is_some())
    }
}

#[test]
fn parser_reads_status_fields_and_body() {
    let answer =
        Answer::parse("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\na: b: c\r\n\r\nslow\r\n\r\ndown");
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), Some("7"));
    assert_eq!(answer.header("a"), Some("b: c"));
    assert_eq!(answer.header("b"), None);
    assert_eq!(answer.body, "slow\r\n\r\ndown");
    assert!(answer.has_limit_fields());
    assert!(!Answer::parse("HTTP/1.1 200 OK\r\n\r\n").has_limit_fields());
}

#[test]
#[should_panic(expected = "in several lines")]
fn header_panics_if_field_has_several_lines() {
    Answer::parse("HTTP/1.1 200 OK\r\na: b\r\nA: c\r\n\r\n").header("a");
}
