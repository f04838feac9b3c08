//! A server in memory, which answers a handshake properly and all other commands with chunks of the input.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The largest number of connections, so that a client that always reconnects comes to an end.
const MAX_CONNECTIONS: usize = 32;

/// What the server answers to the commands that no check needs: HELLO, CLIENT, TIME and CLUSTER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    /// A valid reply.
    Valid,
    /// A chunk of the input.
    Input,
}

/// A server. Clones share the chunks.
#[derive(Clone)]
pub(super) struct Server(Arc<Mutex<State>>);

struct State {
    handshake: Handshake,
    chunks: VecDeque<Vec<u8>>,
    /// What the server has sent over each connection.
    sent: Vec<Vec<u8>>,
}

/// A connection to the server.
pub(super) struct Stream {
    server: Server,
    number: usize,
    /// The bytes of commands that are not complete.
    received: Vec<u8>,
    /// The bytes that the client has not read.
    replies: VecDeque<u8>,
    /// Whether the connection ends after these bytes.
    has_ended: bool,
    reader: Option<Waker>,
}

impl Server {
    pub(super) fn new(handshake: Handshake, chunks: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self(Arc::new(Mutex::new(State {
            handshake,
            chunks: chunks.into_iter().collect(),
            sent: Vec::new(),
        })))
    }

    pub(super) fn connect(&self) -> io::Result<Stream> {
        let mut state = self.state();
        if state.sent.len() == MAX_CONNECTIONS {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let number = state.sent.len();
        state.sent.push(Vec::new());
        let (server, received, replies) = (self.clone(), Vec::new(), VecDeque::new());
        Ok(Stream { server, number, received, replies, has_ended: false, reader: None })
    }

    /// Returns what the server has sent over each connection.
    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        self.state().sent.clone()
    }

    /// Returns the reply to a command over a connection, or `None` to end the connection.
    fn reply(&self, connection: usize, command: &[&[u8]]) -> Option<Vec<u8>> {
        let mut state = self.state();
        let valid = match (state.handshake, command) {
            (Handshake::Input, _) => None,
            (_, [b"HELLO", ..]) => Some("%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
            (_, [b"CLIENT", ..]) => Some("+OK\r\n"),
            (_, [b"TIME"]) => Some("*2\r\n$10\r\n1700000000\r\n$1\r\n7\r\n"),
            (_, [b"CLUSTER", b"SLOTS"]) => Some("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\na\r\n:1\r\n"),
            (_, [b"CLUSTER", b"INFO"]) => Some("$16\r\ncluster_state:ok\r\n"),
            (_, [b"CLUSTER", _]) => Some("-NOPERM\r\n"),
            _ => None,
        };
        let reply = valid.map(|valid| valid.as_bytes().to_vec()).or_else(|| state.chunks.pop_front())?;
        state.sent[connection].extend_from_slice(&reply);
        Some(reply)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.replies.is_empty() && !self.has_ended {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let length = buffer.remaining().min(self.replies.len());
        let bytes: Vec<u8> = self.replies.drain(..length).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.received.extend_from_slice(bytes);
        let mut rest = &this.received[..];
        while let Some((command, after)) = command(rest) {
            rest = after;
            if this.has_ended {
                break;
            }
            match this.server.reply(this.number, &command) {
                Some(reply) => this.replies.extend(reply),
                None => this.has_ended = true,
            }
        }
        let parsed = this.received.len() - rest.len();
        this.received.drain(..parsed);
        if let Some(reader) = this.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the words of the first command, and the bytes after it. Returns `None` if it is not complete.
fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (words, mut rest) = number(b'*', bytes)?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let (length, after) = number(b'$', rest)?;
        command.push(after.get(..length)?);
        rest = after.get(length + 2..)?;
    }
    Some((command, rest))
}

/// Returns the number in a line that begins with this mark, and the bytes after the line.
fn number(mark: u8, bytes: &[u8]) -> Option<(usize, &[u8])> {
    let line = bytes.strip_prefix(&[mark])?;
    let end = line.windows(2).position(|end| end == b"\r\n")?;
    Some((str::from_utf8(&line[..end]).ok()?.parse().ok()?, &line[end + 2..]))
}
