//! The simulated server: accepts connections and executes one command after the other.

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
        // At a crash of the server, local tasks end in a deterministic order. The order of other tasks depends on the process.
        // A broken connection is no error of the server.
        tokio::task::spawn_local(serve_connection(stream, store.clone(), record.clone()));
    }
}

async fn serve_connection(mut stream: TcpStream, store: Arc<Mutex<Store>>, record: Record) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        loop {
            wait_while_paused(&store).await;
            let reply = match resp::take_command(&mut bytes) {
                Ok(None) => break,
                Ok(Some(command)) => store.lock().unwrap().reply_to(&command),
                Err(line) => Err(line),
            };
            match reply {
                Ok(reply) => stream.write_all(&reply).await?,
                Err(what) => {
                    record.note(Event::UnknownCommand(what));
                    return Ok(());
                }
            }
        }
    }
}

/// Waits while the server is stopped.
async fn wait_while_paused(store: &Mutex<Store>) {
    loop {
        let until = store.lock().unwrap().paused_until;
        let left = until.saturating_sub(turmoil::sim_elapsed().unwrap());
        if left == Duration::ZERO {
            return;
        }
        sleep(left).await;
    }
}
