//! A fault injection proxy between the client and the server. It forwards all bytes until a test chooses a fault.

use std::{
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU16, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::sleep,
};

use crate::support::server::Server;

/// The point at which the proxy closes the connection. The server has run the command by then.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// No byte of the next reply arrives.
    BeforeReply = 1,
    /// The first half of the next reply arrives.
    WithinReply = 2,
}

/// A flag beside a cut: cut every reply, not only the next one.
const ALWAYS: u8 = 128;

/// The bytes that the proxy forwards while it cuts no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Requests and replies.
    Everything,
    /// No bytes; the connections stay open.
    Nothing,
    /// Requests, but no replies.
    Questions,
    /// Requests. The replies arrive when the proxy passes something else.
    HeldReplies,
}

impl Cut {
    pub const ALL: [Self; 2] = [Self::BeforeReply, Self::WithinReply];
}

/// A proxy in front of one server.
pub struct Proxy {
    port: u16,
    next_cut: Arc<AtomicU8>,
    passing: watch::Sender<Passing>,
}

impl Proxy {
    pub async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let next_cut = Arc::new(AtomicU8::new(0));
        let (passing, passing_now) = watch::channel(Passing::Everything);
        let (server, cut) = (server.port(), next_cut.clone());
        // The task ends with the runtime of the test.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // If the server is down, the proxy closes the client's connection.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                    tokio::spawn(forward(client, server, cut.clone(), passing_now.clone()));
                }
            }
        });
        Self { port, next_cut, passing }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Sets what the proxy forwards, on open and on new connections. Discarded bytes never arrive.
    pub fn pass(&self, passing: Passing) {
        self.passing.send_replace(passing);
    }

    /// Cuts the next reply at this point.
    pub fn cut_next(&self, cut: Cut) {
        self.next_cut.store(cut as u8, Ordering::SeqCst);
    }

    /// Cuts every reply at this point, or none.
    pub fn cut_every(&self, cut: Option<Cut>) {
        self.next_cut.store(cut.map_or(0, |cut| cut as u8 | ALWAYS), Ordering::SeqCst);
    }

    /// Returns whether the proxy has made the requested cut.
    pub fn has_cut(&self) -> bool {
        self.next_cut.load(Ordering::SeqCst) == 0
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    next_cut: Arc<AtomicU8>,
    passing: watch::Receiver<Passing>,
) {
    let (mut request, mut reply) = ([0; 65536], [0; 65536]);
    let mut holding = passing.clone();
    loop {
        tokio::select! {
            read = client.read(&mut request) => match read {
                Ok(1..) if *passing.borrow() == Passing::Nothing => {}
                Ok(length @ 1..) => {
                    if server.write_all(&request[..length]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
            read = read_unless_held(&mut server, &mut reply, &mut holding) => match read {
                Ok(1..) if *passing.borrow() != Passing::Everything => {}
                Ok(length @ 1..) => {
                    let once = |cut: u8| (cut & ALWAYS == 0).then_some(0);
                    let cut = next_cut.fetch_update(Ordering::SeqCst, Ordering::SeqCst, once);
                    let cut = cut.unwrap_or_else(|cut| cut);
                    let forwarded = match cut & !ALWAYS {
                        0 => length,
                        1 => 0,
                        _ => length / 2,
                    };
                    let _ = client.write_all(&reply[..forwarded]).await;
                    if cut != 0 {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

/// Reads a reply, but not while the replies are held.
async fn read_unless_held(
    server: &mut TcpStream,
    reply: &mut [u8],
    passing: &mut watch::Receiver<Passing>,
) -> io::Result<usize> {
    // If the proxy is dropped, no reply is held any more.
    let _ = passing.wait_for(|passing| *passing != Passing::HeldReplies).await;
    server.read(reply).await
}

/// Starts a relay that forwards connections to a port, and returns its own port. Requests take longer by this delay. `is_cut`
/// decides by the address of the client whether to close a connection.
pub async fn relay(
    target: Arc<AtomicU16>,
    delay: Duration,
    is_cut: impl Fn(IpAddr) -> bool + Clone + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, from)) = listener.accept().await {
            let (target, is_cut) = (target.clone(), is_cut.clone());
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst))).await
                else {
                    return;
                };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let is_cut = || is_cut(from.ip());
                tokio::select! {
                    () = copy(from_client, to_server, delay, &is_cut) => {}
                    () = copy(from_server, to_client, Duration::ZERO, &is_cut) => {}
                }
            });
        }
    });
    port
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    is_cut: &(dyn Fn() -> bool + Sync),
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if is_cut() || to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
