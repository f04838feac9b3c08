//! How to connect to one server: its address, credentials, TLS and socket options.

use std::{io, time::Duration};

use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError, RedisResult,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::backend::redis::{eviction::EvictionCheck, tls::Tls, url::has_unencoded_password};

/// The operating system closes a connection whose data is not acknowledged for this long.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// A host and a port.
pub(super) type Address = (String, u16);

/// How to connect to one server.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) info: ConnectionInfo,
    /// Whether to fall back to RESP2 for a server that does not know RESP3.
    pub(super) allows_resp2: bool,
    /// Shared by all servers of a backend, and by its further connections to them.
    pub(super) eviction: EvictionCheck,
}

impl Endpoint {
    /// Returns the endpoint of a URL. Without a `protocol` parameter, the connection prefers RESP3 and falls back to RESP2.
    pub(super) fn from_url(url: &str, tls: &Tls) -> RedisResult<Self> {
        let keepalive = TcpKeepalive::new().with_time(DEAD_PEER_TIMEOUT).with_interval(DEAD_PEER_TIMEOUT);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        let tcp = tcp.set_user_timeout(DEAD_PEER_TIMEOUT);
        // With RESP3 the client reports a lost connection at once. With RESP2 only a failed command shows the loss.
        let allows_resp2 = !url.split_once('?').is_some_and(|(_, query)| query.contains("protocol="));
        let info = connection_info(url, tls)?.set_tcp_settings(tcp);
        let endpoint = Self { info, allows_resp2, eviction: EvictionCheck::default() };
        Ok(if allows_resp2 { endpoint.with_protocol(ProtocolVersion::RESP3) } else { endpoint })
    }

    /// Returns the same endpoint with another protocol version.
    pub(super) fn with_protocol(self, protocol: ProtocolVersion) -> Self {
        let settings = self.info.redis_settings().clone().set_protocol(protocol);
        Self { info: self.info.set_redis_settings(settings), ..self }
    }

    /// Returns the endpoint of another server of the same cluster.
    pub(super) fn with_address(&self, address: &Address) -> Self {
        Self { info: with_address(&self.info, address), ..self.clone() }
    }

    /// Returns whether it has a host and a port, and is no Unix socket.
    pub(super) fn is_tcp(&self) -> bool {
        !matches!(self.info.addr(), ConnectionAddr::Unix(_))
    }

    /// Returns the host and the port. A Unix socket has none and is an error.
    pub(super) fn address(&self) -> RedisResult<Address> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok((host.clone(), *port))
            }
            _ => Err(invalid("missing host: a cluster or Sentinel cannot use a Unix socket")),
        }
    }
}

/// Returns how to connect to the server at a URL.
pub(super) fn connection_info(url: &str, tls: &Tls) -> RedisResult<ConnectionInfo> {
    // The host is in errors, events and a metric, and the system looks it up.
    if has_unencoded_password(url) {
        return Err(invalid(
            "`@` or `#` after the host: percent-encode special characters in the user and the password: `/` is `%2F`, `?` is `%3F`, `#` is `%23` \
             and `@` is `%40`",
        ));
    }
    let info = url.into_connection_info()?;
    // Another crate may have enabled such connections in the client crate.
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        return Err(invalid(
            "`#insecure` verifies no certificate: remove it, and trust the authority of the server",
        ));
    }
    let settings = info.redis_settings();
    if settings.db() < 0 {
        return Err(invalid("the database must be a number from 0"));
    }
    // The client crate would connect as the default user, which may have more permissions.
    let is_empty = |text: Option<&str>| text.unwrap_or_default().is_empty();
    if !is_empty(settings.username()) && is_empty(settings.password()) {
        return Err(invalid("a user needs a password: for a user with `nopass`, state any"));
    }
    tls.apply(info)
}

/// Returns the error of an attempt to connect that has taken this long, to an endpoint if it is known.
pub(super) fn timed_out(endpoint: Option<&Endpoint>, after: Duration) -> RedisError {
    // A server without TLS waits for the rest of a command.
    let hint = match endpoint.map(|endpoint| endpoint.info.addr()) {
        Some(ConnectionAddr::TcpTls { .. }) => ": the server may not speak TLS",
        _ => "",
    };
    io::Error::new(io::ErrorKind::TimedOut, format!("connection timed out after {after:?}{hint}")).into()
}

pub(super) fn invalid(text: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, text).into()
}

/// Returns how to connect to another server with the same settings.
pub(super) fn with_address(info: &ConnectionInfo, (host, port): &Address) -> ConnectionInfo {
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.clone(), *port),
    };
    info.clone().set_addr(address)
}
