//! A simulated server: accepts connections and executes one command after the other.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::sleep,
};
use turmoil::net::{TcpListener, TcpStream};

use super::{resp, run::TICK};

pub const PORT: u16 = 6379;

/// Executes the commands of a server.
pub trait Execute: Clone + 'static {
    /// Returns the reply to a command, or an error text if the client must not send this command.
    fn reply_to(&self, session: &mut Session, command: &[Vec<u8>]) -> Result<Vec<u8>, String>;

    /// Returns the instant until which the server executes no command, in true time.
    fn paused_until(&self) -> Duration;

    fn note_unknown_command(&self, what: String);
}

/// The state of one connection.
#[derive(Default)]
pub struct Session {
    /// Whether the last command was ASKING.
    pub is_asking: bool,
}

pub async fn serve(executor: impl Execute) -> turmoil::Result {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        // At a crash of the server, local tasks end in a deterministic order. The order of other tasks depends on the process.
        // A broken connection is no error of the server.
        tokio::task::spawn_local(serve_connection(stream, executor.clone()));
    }
}

async fn serve_connection(mut stream: TcpStream, executor: impl Execute) -> io::Result<()> {
    let (mut bytes, mut session) = (Vec::new(), Session::default());
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        loop {
            wait_while_paused(&executor).await;
            let reply = match resp::take_command(&mut bytes) {
                Ok(None) => break,
                Ok(Some(command)) => executor.reply_to(&mut session, &command),
                Err(line) => Err(line),
            };
            match reply {
                Ok(reply) => stream.write_all(&reply).await?,
                Err(what) => {
                    executor.note_unknown_command(what);
                    return Ok(());
                }
            }
        }
    }
}

/// Waits while the server is stopped.
async fn wait_while_paused(executor: &impl Execute) {
    loop {
        let until = executor.paused_until();
        let left = until.saturating_sub(turmoil::sim_elapsed().unwrap());
        if left == Duration::ZERO {
            return;
        }
        // The pause may end earlier.
        sleep(left.min(2 * TICK)).await;
    }
}
