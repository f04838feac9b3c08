//! TLS connections: trusted and untrusted certificates.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tower_sliding_window::{
    ConfigError, RedisBackend,
    backend::Reason,
    redis::{ConnectError, Tls},
};

use super::rig::{HOUR, alice, limiter, policy, reason};
use crate::support::server::{Engine, Server, free_port};

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
    _server: Server,
    _files: TempDir,
}

impl Encrypted {
    /// Starts a server. `clients` is `yes` if a client needs a certificate, and `no` otherwise.
    fn start(engine: Engine, authority: &Authority, clients: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let Identity { certificate, key } = authority.sign("127.0.0.1");
        let write = |name: &str, text: &str| {
            let path = files.path().join(name);
            fs::write(&path, text).unwrap();
            path_of(&path)
        };
        let port = free_port();
        let server = Server::with_options(
            engine,
            &[
                "--tls-port",
                &port.to_string(),
                "--tls-cert-file",
                &write("certificate.pem", &certificate),
                "--tls-key-file",
                &write("key.pem", &key),
                "--tls-ca-cert-file",
                &write("authority.pem", &authority.pem),
                "--tls-auth-clients",
                clients,
            ],
        );
        Self { url: format!("rediss://127.0.0.1:{port}/"), _server: server, _files: files }
    }
}

fn path_of(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

async fn assert_limits(backend: RedisBackend) {
    let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
    limiter.reset(alice()).await.unwrap();
    assert!(limiter.check((alice(), 9)).await.unwrap().is_admitted(), "9 of 10 units");
    assert!(!limiter.check((alice(), 2)).await.unwrap().is_admitted(), "one unit remains");
}

/// Returns the connection error, and asserts that a check fails as well.
async fn connect_error(url: &str, tls: Option<Tls>) -> String {
    let outcome = match tls.clone() {
        Some(tls) => RedisBackend::connect_with_tls(url, tls).await,
        None => RedisBackend::connect(url).await,
    };
    let error = outcome.expect_err("a connection");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    // A check fails as well.
    let lazy = match tls {
        Some(tls) => RedisBackend::lazy_with_tls(url, tls),
        None => RedisBackend::lazy(url),
    };
    let limiter = limiter(lazy.unwrap(), [policy("hourly", 10, HOUR)]);
    assert_eq!(reason(limiter.check(alice()).await), Reason::Connection, "a check fails as well");
    error.to_string()
}

#[tokio::test]
async fn backend_accepts_server_of_trusted_authority() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("trusted"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "no");
        let tls = Tls::new().authority(&authority.pem);
        assert_limits(RedisBackend::connect_with_tls(&server.url, tls.clone()).await.unwrap()).await;
        assert_limits(RedisBackend::lazy_with_tls(&server.url, tls.clone()).unwrap()).await;
        // One of several authorities, and RESP2.
        let both = Tls::new().authority(another.pem.trim_end()).authority(&authority.pem);
        let resp2 = format!("{}?protocol=resp2", server.url);
        assert_limits(RedisBackend::connect_with_tls(&resp2, both).await.unwrap()).await;
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
        assert_limits(RedisBackend::connect_with_tls(&server.url, with(&authority)).await.unwrap()).await;

        let error = connect_error(&server.url, Some(trusted.clone())).await;
        assert!(error.contains("CertificateRequired"), "{engine:?}: {error}");
        let error = connect_error(&server.url, Some(with(&another))).await;
        assert!(error.contains("UnknownCA") || error.contains("DecryptError"), "{engine:?}: {error}");
    }
}

#[tokio::test]
async fn invalid_tls_settings_fail_early_and_hide_key() {
    let url = "rediss://127.0.0.1:1/";
    let authority = Authority::new("trusted");
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let config_error = |tls: &Tls| match RedisBackend::lazy_with_tls(url, tls.clone()) {
        Err(error @ ConfigError::RedisTls { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let trusted = || Tls::new().authority(&authority.pem);
    let broken = authority.pem.replace("-----END", "-----EDN");
    let key_error = "TLS to Redis: invalid client key: not a private key in PEM";
    for (tls, expected) in [
        (Tls::new().authority(""), "TLS to Redis: invalid authority: no certificate in PEM found"),
        (Tls::new().authority(&one.key), "TLS to Redis: invalid authority: no certificate in PEM found"),
        (Tls::new().authority(broken), "TLS to Redis: invalid authority: not a certificate in PEM: "),
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
        let error = RedisBackend::connect_with_tls(url, tls).await.unwrap_err();
        assert!(matches!(error, ConnectError::Url(ConfigError::RedisTls { .. })), "{error:?}");
    }
    let error = RedisBackend::lazy_with_tls("redis://127.0.0.1/", trusted()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "TLS to Redis: certificates need a URL that begins with rediss://",
        "certificates need an encrypted connection"
    );
    RedisBackend::lazy_with_tls(url, trusted().client(&one.certificate, &one.key)).unwrap();
    RedisBackend::lazy_with_tls("redis://127.0.0.1/", Tls::new()).unwrap();
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
    let backend = RedisBackend::lazy_with_tls("rediss://user:pa55word@127.0.0.1:1/", tls).unwrap();
    let text = format!("{backend:?}");
    assert!(text.contains("127.0.0.1:1") && !text.contains("BEGIN") && !text.contains("pa55word"), "{text}");
}
