//! A proxy that delays every byte on its way to the server.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::server::Server;

/// A proxy in front of one server. It delays requests, not replies, so the delay is that of a round trip.
pub struct DelayProxy {
    port: u16,
}

impl DelayProxy {
    pub async fn before(server: &Server, delay: Duration) -> Self {
        Self::before_port(server.port(), delay).await
    }

    /// Returns a proxy in front of a port of this machine.
    pub async fn before_port(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // The task ends with the runtime of the test.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                    client.set_nodelay(true).unwrap();
                    server.set_nodelay(true).unwrap();
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::spawn(forward(from_client, to_server, delay));
                    tokio::spawn(forward(from_server, to_client, Duration::ZERO));
                }
            }
        });
        Self { port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (sender, mut delayed) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, bytes)) = delayed.recv().await {
            if !delay.is_zero() {
                sleep_until(at).await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if sender.send((Instant::now() + delay, bytes[..length].to_vec())).is_err() {
            return;
        }
    }
}
