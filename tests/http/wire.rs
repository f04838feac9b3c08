//! An app on a loopback socket, and a client that hides nothing of what comes over the wire.

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

/// An axum app that is served until this is dropped.
pub struct Site {
    address: SocketAddr,
    server: JoinHandle<()>,
}

/// What a server has answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The header fields, with names in lower case, in the order in which they came.
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

/// Sends one request, on a connection of its own.
pub async fn request(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    request_with_body(address, method, path, headers, "").await
}

/// The same with a body.
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
    // So that a server that hangs fails its test and does not stop all of them.
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

    /// The value of a field, if it is there.
    ///
    /// # Panics
    ///
    /// If it is there in several lines, of which many clients read only one.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(there, _)| there == name).map(|(_, value)| &**value);
        let (first, second) = (values.next(), values.next());
        assert_eq!(second, None, "{name} is there in several lines: {self:?}");
        first
    }

    /// The body, read as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Whether a limit has spoken in this answer at all.
    pub fn tells_of_limits(&self) -> bool {
        ["ratelimit", "ratelimit-policy", "retry-after"].iter().any(|name| self.header(name).is_some())
    }
}

#[test]
fn an_answer_is_read_as_it_was_written() {
    let answer =
        Answer::parse("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\na: b: c\r\n\r\nslow\r\n\r\ndown");
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), Some("7"));
    assert_eq!(answer.header("a"), Some("b: c"));
    assert_eq!(answer.header("b"), None);
    assert_eq!(answer.body, "slow\r\n\r\ndown");
    assert!(answer.tells_of_limits());
    assert!(!Answer::parse("HTTP/1.1 200 OK\r\n\r\n").tells_of_limits());
}

#[test]
#[should_panic(expected = "in several lines")]
fn a_field_in_several_lines_is_not_overlooked() {
    Answer::parse("HTTP/1.1 200 OK\r\na: b\r\nA: c\r\n\r\n").header("a");
}
