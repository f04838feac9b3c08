//! TLS connections: trusted and untrusted certificates.

use std::{fs, time::Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redis::{Client, cmd};
use tempfile::TempDir;
use tokio::{net::TcpStream, task::spawn_blocking};
use tower_sliding_window::{
    ConfigError, PartitionKey, RedisBackend,
    backend::Reason,
    redis::{ConnectError, RedisBackendBuilder, RedisServers, Tls},
};

use super::{
    admin::Admin,
    rig::{HOUR, TIMEOUT, alice, limiter, policy, reason, wait_until},
};
use crate::support::{
    cluster::{Cluster, OPTIONS},
    server::{Engine, Server, free_cluster_port, free_port},
};

/// The engines with TLS. Debian builds Redis with it; the wheels of the other engines have none.
const WITH_TLS: [Engine; 1] = [Engine::Redis];

/// A certificate authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, name: &str) -> Identity {
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

/// A server with a certificate for `127.0.0.1`.
struct Encrypted {
    url: String,
    /// The port with TLS.
    port: u16,
    server: Server,
    _folder: TempDir,
}

/// The files of a server with a certificate for `127.0.0.1`.
struct Files {
    folder: TempDir,
    /// The names of the settings with their values.
    settings: Vec<[String; 2]>,
}

impl Files {
    /// Writes the files. `clients` is `yes` if a client needs a certificate, and `no` otherwise.
    fn new(authority: &Authority, clients: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let Identity { certificate, key } = authority.sign("127.0.0.1");
        let texts = [("cert-file", &certificate), ("key-file", &key), ("ca-cert-file", &authority.pem)];
        let mut settings = vec![["tls-auth-clients".to_owned(), clients.to_owned()]];
        for (name, text) in texts {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            settings.push([format!("tls-{name}"), path.to_str().unwrap().to_owned()]);
        }
        Self { folder, settings }
    }

    /// Returns the options of a server that listens with TLS at this port.
    fn options(&self, port: u16) -> Vec<String> {
        let port = ["--tls-port".to_owned(), port.to_string()];
        let settings = self.settings.iter().flat_map(|[name, value]| [format!("--{name}"), value.clone()]);
        port.into_iter().chain(settings).collect()
    }
}

impl Encrypted {
    /// Starts a server. `clients` is `yes` if a client needs a certificate, and `no` otherwise.
    fn start(engine: Engine, authority: &Authority, clients: &str) -> Self {
        Self::with_options(engine, authority, clients, free_port(), &[])
    }

    fn with_options(
        engine: Engine,
        authority: &Authority,
        clients: &str,
        port: u16,
        options: &[&str],
    ) -> Self {
        let files = Files::new(authority, clients);
        let tls = files.options(port);
        let options: Vec<&str> = tls.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let server = Server::with_options(engine, &options);
        Self { url: format!("rediss://127.0.0.1:{port}/"), port, server, _folder: files.folder }
    }

    /// Starts a Sentinel that monitors a server with TLS, as `limits`.
    fn sentinel(engine: Engine, authority: &Authority, monitored: &Self) -> Self {
        let (files, port) = (Files::new(authority, "yes"), free_port());
        let monitored = monitored.port;
        let mut configuration = format!(
            "sentinel monitor limits 127.0.0.1 {monitored} 1\ntls-replication yes\ntls-port {port}\n"
        );
        for [name, value] in &files.settings {
            configuration += &format!("{name} {value}\n");
        }
        let server = Server::sentinel(engine, &configuration);
        Self { url: format!("rediss://127.0.0.1:{port}/"), port, server, _folder: files.folder }
    }
}

async fn assert_limits(backend: RedisBackend) {
    let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
    limiter.reset(alice()).await.unwrap();
    assert!(limiter.check((alice(), 9)).await.unwrap().is_admitted(), "9 of 10 units");
    assert!(!limiter.check((alice(), 2)).await.unwrap().is_admitted(), "one unit remains");
}

fn builder(url: &str, tls: Tls) -> RedisBackendBuilder {
    RedisBackend::builder(RedisServers::single(url)).tls(tls)
}

/// Returns the connection error, and asserts that a check fails as well.
async fn connect_error(url: &str, tls: Option<Tls>) -> String {
    let tls = tls.unwrap_or_default();
    let error = builder(url, tls.clone()).connect().await.expect_err("a connection");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    // A check fails as well.
    let limiter = limiter(builder(url, tls).lazy().unwrap(), [policy("hourly", 10, HOUR)]);
    assert_eq!(reason(limiter.check(alice()).await), Reason::Connection, "a check fails as well");
    error.to_string()
}

#[tokio::test]
async fn backend_accepts_server_of_trusted_authority() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("trusted"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "no");
        let tls = Tls::new().authority(&authority.pem);
        assert_limits(builder(&server.url, tls.clone()).connect().await.unwrap()).await;
        assert_limits(builder(&server.url, tls.clone()).lazy().unwrap()).await;
        // One of several authorities, and RESP2.
        let both = Tls::new().authority(another.pem.trim_end()).authority(&authority.pem);
        let resp2 = format!("{}?protocol=resp2", server.url);
        assert_limits(builder(&resp2, both).connect().await.unwrap()).await;
    }
}

/// A server without TLS waits for the rest of a command.
#[tokio::test]
async fn timeout_over_tls_hints_at_server_without_tls() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let url = format!("rediss://127.0.0.1:{}/", server.port());
        for servers in [RedisServers::single(&url), RedisServers::cluster([&url])] {
            let error = RedisBackend::builder(servers).connect().await.unwrap_err();
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
            assert!(error.to_string().ends_with(": the server may not speak TLS"), "{engine:?}: {error}");
        }
    }
}

#[tokio::test]
async fn connect_fails_for_untrusted_certificate() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("trusted"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "no");
        for tls in [None, Some(Tls::new().authority(&another.pem))] {
            let error = connect_error(&server.url, tls).await;
            assert!(error.contains("invalid peer certificate: UnknownIssuer"), "{engine:?}: {error}");
        }
        // The certificate is for another name.
        let url = server.url.replace("127.0.0.1", "localhost");
        let error = connect_error(&url, Some(Tls::new().authority(&authority.pem))).await;
        assert!(
            error.contains("invalid peer certificate: certificate not valid for name"),
            "{engine:?}: {error}"
        );
    }
}

#[tokio::test]
async fn server_demands_client_certificate_of_its_authority() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("trusted"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "yes");
        let trusted = Tls::new().authority(&authority.pem);
        let with = |by: &Authority| {
            let Identity { certificate, key } = by.sign("limiter");
            trusted.clone().client(certificate, key)
        };
        assert_limits(builder(&server.url, with(&authority)).connect().await.unwrap()).await;

        let error = connect_error(&server.url, Some(trusted.clone())).await;
        assert!(error.contains("CertificateRequired"), "{engine:?}: {error}");
        let error = connect_error(&server.url, Some(with(&another))).await;
        assert!(error.contains("UnknownCA") || error.contains("DecryptError"), "{engine:?}: {error}");
    }
}

/// The primary and the Sentinels demand a certificate of the same authority.
#[tokio::test]
async fn private_authority_works_behind_sentinels() {
    for engine in WITH_TLS {
        let authority = Authority::new("trusted");
        let start = |options: &[&str]| {
            let options = [&["--tls-replication", "yes"], options].concat();
            Encrypted::with_options(engine, &authority, "yes", free_port(), &options)
        };
        let primary = start(&[]);
        let replica = start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
        let sentinels = [(); 2].map(|()| Encrypted::sentinel(engine, &authority, &primary));
        let Identity { certificate, key } = authority.sign("limiter");
        let trusted = Tls::new().authority(&authority.pem);
        // The backend discovers the other Sentinel.
        let builder = |tls: &Tls| {
            let servers = RedisServers::sentinel("rediss://limits", [&sentinels[0].url]);
            RedisBackend::builder(servers).tls(tls.clone())
        };
        let backend = builder(&trusted.clone().client(certificate, key)).connect().await.unwrap();
        assert_limits(backend.clone()).await;

        let error = builder(&trusted).connect().await.unwrap_err().to_string();
        assert!(error.contains("CertificateRequired"), "{engine:?}: {error}");
        let error = builder(&Tls::new()).connect().await.unwrap_err().to_string();
        assert!(error.contains("UnknownIssuer"), "{engine:?}: {error}");

        let mut sentinel = Admin::at(&sentinels[1].server);
        let fails_over = || cmd("SENTINEL").arg("FAILOVER").arg("limits").exec(&mut sentinel.0).is_ok();
        wait_until("the Sentinel knows the replica", fails_over).await;
        // A promotion closes the connections to the server, also new ones.
        let is_promoted = || {
            let connected = Client::open(replica.server.url()).unwrap().get_connection();
            let info =
                connected.and_then(|mut plain| cmd("INFO").arg("replication").query::<String>(&mut plain));
            info.is_ok_and(|info| info.contains("role:master"))
        };
        wait_until("the replica is promoted", is_promoted).await;
        let mut promoted = Admin::at(&replica.server);
        promoted.query::<()>(&["FLUSHALL"]);
        let limiter = limiter(backend, [policy("hourly", 1_000_000, HOUR)]);
        let start = Instant::now();
        while promoted.query::<u64>(&["DBSIZE"]) == 0 {
            assert!(start.elapsed() < TIMEOUT, "{engine:?}: the backend follows the new primary");
            let _ = limiter.check(alice()).await;
        }
    }
}

#[tokio::test]
async fn private_authority_works_in_cluster() {
    for engine in WITH_TLS {
        let authority = Authority::new("trusted");
        let options = [&OPTIONS[..], &["--tls-cluster", "yes", "--tls-replication", "yes"]].concat();
        let (mut urls, mut servers, mut addresses, mut folders) = (vec![], vec![], vec![], vec![]);
        for _ in 0..6 {
            let node = Encrypted::with_options(engine, &authority, "yes", free_cluster_port(), &options);
            urls.push(node.url);
            servers.push(node.server);
            addresses.push([node.port, node.port + 10_000]);
            folders.push(node._folder);
        }
        let _cluster = spawn_blocking(move || Cluster::of(servers, &addresses)).await.unwrap();
        let Identity { certificate, key } = authority.sign("limiter");
        let tls = Tls::new().authority(&authority.pem).client(certificate, key);
        let backend =
            RedisBackend::builder(RedisServers::cluster([&urls[0]])).tls(tls).connect().await.unwrap();
        // Of 20 keys, every primary has some.
        let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
        for i in 0..20 {
            let user = PartitionKey::new("user", i.to_string());
            assert!(limiter.check(user).await.unwrap().is_admitted(), "{engine:?} {i}");
        }
    }
}

#[tokio::test]
async fn invalid_tls_settings_fail_early_and_hide_key() {
    let url = "rediss://127.0.0.1:1/";
    let authority = Authority::new("trusted");
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let config_error = |tls: &Tls| match builder(url, tls.clone()).lazy() {
        Err(error @ ConfigError::RedisTls { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let trusted = || Tls::new().authority(&authority.pem);
    let broken = authority.pem.replace("-----END", "-----EDN");
    let key_error = "TLS to Redis: invalid client key: not a private key in PEM";
    for (tls, expected) in [
        (Tls::new().authority(""), "TLS to Redis: invalid authority: no certificate in PEM found"),
        (Tls::new().authority(&one.key), "TLS to Redis: invalid authority: no certificate in PEM found"),
        (Tls::new().authority(broken), "TLS to Redis: invalid authority: not a complete certificate in PEM"),
        (
            trusted().client("no", &one.key),
            "TLS to Redis: invalid client certificate: no certificate in PEM found",
        ),
        (trusted().client(&one.certificate, "s3cret"), key_error),
        (trusted().client(&one.certificate, &one.certificate), key_error),
        (trusted().client(&one.certificate, &other.key), "TLS to Redis: invalid client certificate or key: "),
    ] {
        let error = config_error(&tls);
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains("s3cret") && !error.contains(one.key.lines().nth(1).unwrap()), "{error}");
        let error = builder(url, tls).connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Config(ConfigError::RedisTls { .. })), "{error:?}");
    }
    let error = builder("redis://127.0.0.1/", trusted()).lazy().unwrap_err();
    assert_eq!(
        error.to_string(),
        "TLS to Redis: these settings need a URL that begins with rediss://",
        "certificates need an encrypted connection"
    );
    builder(url, trusted().client(&one.certificate, &one.key)).lazy().unwrap();
    // Every URL needs TLS, and own streams have no use for certificates.
    for servers in [
        RedisServers::sentinel("rediss://limits", ["redis://127.0.0.1:1/"]),
        RedisServers::sentinel("redis://limits", [url]),
        RedisServers::cluster([url, "redis://127.0.0.1:1/"]),
        RedisServers::streams(|| TcpStream::connect("127.0.0.1:1")),
    ] {
        let error = RedisBackend::builder(servers).tls(trusted()).lazy().unwrap_err();
        assert!(matches!(error, ConfigError::RedisTls { .. }), "{error:?}");
    }
}

/// Otherwise, a `redis://` that should be `rediss://` would send the password and all keys as plain text.
#[test]
fn default_tls_settings_require_tls_as_well() {
    for servers in [
        RedisServers::single("redis://127.0.0.1/"),
        RedisServers::cluster(["redis://127.0.0.1/"]),
        RedisServers::streams(|| TcpStream::connect("127.0.0.1:1")),
    ] {
        let error = RedisBackend::builder(servers).tls(Tls::new()).lazy().unwrap_err();
        assert_eq!(
            error.to_string(),
            "TLS to Redis: these settings need a URL that begins with rediss://",
            "{error}"
        );
    }
    builder("rediss://127.0.0.1/", Tls::new()).lazy().unwrap();
}

/// Another crate may enable such connections in the client crate.
#[test]
fn url_cannot_turn_verification_off() {
    let insecure = "rediss://127.0.0.1/#insecure";
    let expected = "`#insecure` verifies no certificate: remove it, and trust the authority of the server";
    for (servers, place) in [
        (RedisServers::single(insecure), ""),
        (RedisServers::cluster(["rediss://127.0.0.1/", insecure]), "node 2: "),
        (RedisServers::sentinel("rediss://limits", [insecure]), "Sentinel 1: "),
    ] {
        let error = RedisBackend::builder(servers).lazy().unwrap_err();
        assert!(error.to_string().starts_with(&format!("{place}{expected}; ")), "{error}");
    }
}

#[test]
fn debug_output_hides_certificate_and_key() {
    let tls = Tls::new().authority("an authority").client("a certificate", "a key");
    assert_eq!(
        format!("{tls:?}"),
        "Tls { has_authority: true, has_client: true }",
        "the output hides the certificate and the key"
    );
    let one = Authority::new("trusted").sign("one");
    let tls = Tls::new().client(&one.certificate, &one.key);
    let backend = builder("rediss://user:pa55word@127.0.0.1:1/", tls).lazy().unwrap();
    let text = format!("{backend:?}");
    assert!(text.contains("127.0.0.1:1") && !text.contains("BEGIN") && !text.contains("pa55word"), "{text}");
}
