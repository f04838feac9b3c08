//! A primary, a replica, and three Sentinels of our own that watch them.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use redis::cmd;

use super::server::{Engine, Server};

const SERVICE: &str = "limits";

/// All of it ends with this.
pub struct Watched {
    pub primary: Server,
    pub replica: Server,
    pub sentinels: Vec<Server>,
}

impl Watched {
    pub fn start(engine: Engine) -> Self {
        let primary = Server::start(engine);
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
            assert!(start.elapsed() < Duration::from_secs(30), "the Sentinels do not find each other");
            sleep(Duration::from_millis(50));
        }
        watched
    }

    /// The URL of the primary, with its name.
    pub fn url(&self) -> String {
        format!("redis://{SERVICE}/")
    }

    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// Every Sentinel knows the two others and the replica, and the replica has the primary's data.
    fn is_complete(&self) -> bool {
        let knows_all = |sentinel: &Server| {
            let told: redis::RedisResult<Vec<String>> =
                cmd("SENTINEL").arg("MASTER").arg(SERVICE).query(&mut sentinel.connection());
            let Ok(told) = told else { return false };
            let field = |name: &str| told.iter().skip_while(|it| *it != name).nth(1).map(String::as_str);
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
