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

impl Cut {
    pub const ALL: [Self; 2] = [Self::BeforeReply, Self::WithinReply];
}

pub struct Proxy {
    port: u16,
    next_cut: Arc<AtomicU8>,
}

impl Proxy {
    pub async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let next_cut = Arc::new(AtomicU8::new(0));
        let (server, cut) = (server.port(), next_cut.clone());
        // It ends with the runtime of the test.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                tokio::spawn(pass_on(client, server, cut.clone()));
            }
        });
        Self { port, next_cut }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn cut_next(&self, cut: Cut) {
        self.next_cut.store(cut as u8, Ordering::SeqCst);
    }

    /// Whether the cut that was asked for has been made.
    pub fn has_cut(&self) -> bool {
        self.next_cut.load(Ordering::SeqCst) == 0
    }
}

async fn pass_on(mut client: TcpStream, mut server: TcpStream, next_cut: Arc<AtomicU8>) {
    let (mut question, mut answer) = ([0; 65536], [0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut question) => match read {
                Ok(length @ 1..) => server.write_all(&question[..length]).await.unwrap(),
                _ => return,
            },
            read = server.read(&mut answer) => match read {
                Ok(length @ 1..) => {
                    let cut = next_cut.swap(0, Ordering::SeqCst);
                    let passes = match cut {
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
