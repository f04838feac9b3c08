//! Between the client and the server: it passes everything on, until it is told to break the line at a chosen place.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::server::Server;

/// Where the line breaks, once. The command has reached the server by then, and has run.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// No byte of the next reply arrives.
    BeforeReply = 1,
    /// The first half of the next reply arrives.
    WithinReply = 2,
}

/// Beside a cut: not only the next one.
const ALWAYS: u8 = 128;

/// What becomes of bytes that nobody cuts off.
#[derive(Clone, Copy, Debug)]
pub enum Passing {
    Everything = 0,
    /// Nothing arrives anywhere, and nobody is told.
    Nothing = 1,
    /// Questions arrive, and answers do not.
    Questions = 2,
}

impl Cut {
    pub const ALL: [Self; 2] = [Self::BeforeReply, Self::WithinReply];
}

pub struct Proxy {
    port: u16,
    next_cut: Arc<AtomicU8>,
    passing: Arc<AtomicU8>,
}

impl Proxy {
    pub async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let next_cut = Arc::new(AtomicU8::new(0));
        let passing = Arc::new(AtomicU8::new(0));
        let (server, cut, passes) = (server.port(), next_cut.clone(), passing.clone());
        // It ends with the runtime of the test.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A server that is not there is nobody who answers.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                    tokio::spawn(pass_on(client, server, cut.clone(), passes.clone()));
                }
            }
        });
        Self { port, next_cut, passing }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on, for connections that are there and for new ones. What was swallowed never arrives.
    pub fn pass(&self, passing: Passing) {
        self.passing.store(passing as u8, Ordering::SeqCst);
    }

    pub fn cut_next(&self, cut: Cut) {
        self.next_cut.store(cut as u8, Ordering::SeqCst);
    }

    /// Every reply is cut at this place, or none.
    pub fn cut_every(&self, cut: Option<Cut>) {
        self.next_cut.store(cut.map_or(0, |cut| cut as u8 | ALWAYS), Ordering::SeqCst);
    }

    /// Whether the cut that was asked for has been made.
    pub fn has_cut(&self) -> bool {
        self.next_cut.load(Ordering::SeqCst) == 0
    }
}

async fn pass_on(
    mut client: TcpStream,
    mut server: TcpStream,
    next_cut: Arc<AtomicU8>,
    passing: Arc<AtomicU8>,
) {
    let (mut question, mut answer) = ([0; 65536], [0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut question) => match read {
                Ok(1..) if passing.load(Ordering::SeqCst) == Passing::Nothing as u8 => {}
                Ok(length @ 1..) => {
                    if server.write_all(&question[..length]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
            read = server.read(&mut answer) => match read {
                Ok(1..) if passing.load(Ordering::SeqCst) != Passing::Everything as u8 => {}
                Ok(length @ 1..) => {
                    let once = |cut: u8| (cut & ALWAYS == 0).then_some(0);
                    let cut = next_cut.fetch_update(Ordering::SeqCst, Ordering::SeqCst, once);
                    let cut = cut.unwrap_or_else(|cut| cut);
                    let passes = match cut & !ALWAYS {
                        0 => length,
                        1 => 0,
                        _ => length / 2,
                    };
                    let _ = client.write_all(&answer[..passes]).await;
                    if cut != 0 {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
