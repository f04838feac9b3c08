//! The simulated server: connections, and one command after the other.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::sleep,
};
use turmoil::net::{TcpListener, TcpStream};

use super::{
    record::{Event, Record},
    resp,
    store::Store,
};

pub const PORT: u16 = 6379;

pub async fn serve(store: Arc<Mutex<Store>>, record: Record) -> turmoil::Result {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        // Local tasks end in an order of their own when the server crashes, and others in one that hangs on what else runs in the
        // process. A connection that breaks is no mistake of the server.
        tokio::task::spawn_local(converse(stream, store.clone(), record.clone()));
    }
}

async fn converse(mut stream: TcpStream, store: Arc<Mutex<Store>>, record: Record) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        loop {
            run(&store).await;
            let answer = match resp::take_command(&mut bytes) {
                Ok(None) => break,
                Ok(Some(command)) => store.lock().unwrap().answer(&command),
                Err(line) => Err(line),
            };
            match answer {
                Ok(answer) => stream.write_all(&answer).await?,
                Err(what) => {
                    record.note(Event::Misunderstood(what));
                    return Ok(());
                }
            }
        }
    }
}

/// Waits while the server is stopped.
async fn run(store: &Mutex<Store>) {
    loop {
        let until = store.lock().unwrap().stopped_until;
        let left = until.saturating_sub(turmoil::sim_elapsed().unwrap());
        if left == Duration::ZERO {
            return;
        }
        sleep(left).await;
    }
}
