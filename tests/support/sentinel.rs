//! A primary, a replica, and three Sentinels that monitor them, started by the test.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use redis::cmd;

use super::server::{Engine, Server};

const SERVICE: &str = "limits";

/// A primary, a replica and their Sentinels. All of them end when this is dropped.
pub struct Watched {
    pub primary: Server,
    pub replica: Server,
    pub sentinels: Vec<Server>,
}

impl Watched {
    /// Starts the servers, and waits until the Sentinels know each other.
    pub fn start(engine: Engine) -> Self {
        Self::with_primary(Server::start(engine), engine)
    }

    /// Starts the servers around a primary that remains a primary after a planned failover: the Sentinels cannot demote it.
    pub fn with_stubborn_primary(engine: Engine, options: &[&str]) -> Self {
        let stubborn = ["--rename-command", "REPLICAOF", "", "--rename-command", "SLAVEOF", ""];
        Self::with_primary(Server::with_options(engine, &[&stubborn, options].concat()), engine)
    }

    fn with_primary(primary: Server, engine: Engine) -> Self {
        let port = primary.port().to_string();
        let replica = Server::with_options(engine, &["--replicaof", "127.0.0.1", &port]);
        let configuration = format!(
            "sentinel monitor {SERVICE} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {SERVICE} 500\n\
             sentinel failover-timeout {SERVICE} 3000\n"
        );
        let sentinels = (0..3).map(|_| Server::sentinel(engine, &configuration)).collect();
        let watched = Self { primary, replica, sentinels };
        let start = Instant::now();
        while !watched.is_complete() {
            assert!(start.elapsed() < Duration::from_secs(60), "the Sentinels do not find each other");
            sleep(Duration::from_millis(50));
        }
        watched
    }

    /// Returns the URL of the primary, with its service name.
    pub fn url(&self) -> String {
        format!("redis://{SERVICE}/")
    }

    /// Returns the URLs of the Sentinels.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// Returns whether every Sentinel knows the others and the replica, and the replica is in sync.
    fn is_complete(&self) -> bool {
        let knows_all = |sentinel: &Server| {
            let reply: redis::RedisResult<Vec<String>> =
                cmd("SENTINEL").arg("MASTER").arg(SERVICE).query(&mut sentinel.connection());
            let Ok(fields) = reply else { return false };
            let field =
                |name: &str| fields.iter().skip_while(|field| *field != name).nth(1).map(String::as_str);
            field("num-slaves") == Some("1") && field("num-other-sentinels") == Some("2")
        };
        let replicates = || {
            let info: String =
                cmd("INFO").arg("replication").query(&mut self.replica.connection()).unwrap_or_default();
            info.contains("master_link_status:up")
        };
        replicates() && self.sentinels.iter().all(knows_all)
    }
}
