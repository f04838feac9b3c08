//! Encrypted connections: who is trusted, and who is not.

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

/// Debian builds its Redis with TLS. The wheels of the others have none.
const WITH_TLS: [Engine; 1] = [Engine::Redis];

/// Who signs certificates.
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
    /// `clients`: whether a client needs a certificate, `yes` or `no`.
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

async fn is_limited_by(backend: RedisBackend) {
    let limiter = limiter(backend, [policy("hourly", 10, HOUR)]);
    limiter.reset(alice()).await.unwrap();
    assert!(limiter.check(alice(), 9).await.unwrap().is_admitted());
    assert!(!limiter.check(alice(), 2).await.unwrap().is_admitted());
}

/// Why there is no connection.
async fn refusal(url: &str, tls: Option<Tls>) -> String {
    let outcome = match tls.clone() {
        Some(tls) => RedisBackend::connect_with_tls(url, tls).await,
        None => RedisBackend::connect(url).await,
    };
    let error = outcome.expect_err("a connection");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    // A check says so, too.
    let lazy = match tls {
        Some(tls) => RedisBackend::lazy_with_tls(url, tls),
        None => RedisBackend::lazy(url),
    };
    let limiter = limiter(lazy.unwrap(), [policy("hourly", 10, HOUR)]);
    assert_eq!(reason(limiter.check(alice(), 1).await), Reason::Connection);
    error.to_string()
}

#[tokio::test]
async fn a_server_of_an_authority_that_is_trusted_limits() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("ours"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "no");
        let tls = Tls::new().authority(&authority.pem);
        is_limited_by(RedisBackend::connect_with_tls(&server.url, tls.clone()).await.unwrap()).await;
        is_limited_by(RedisBackend::lazy_with_tls(&server.url, tls.clone()).unwrap()).await;
        // One of several, and in RESP2.
        let both = Tls::new().authority(another.pem.trim_end()).authority(&authority.pem);
        let resp2 = format!("{}?protocol=resp2", server.url);
        is_limited_by(RedisBackend::connect_with_tls(&resp2, both).await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused_and_the_reason_is_told() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("ours"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "no");
        for tls in [None, Some(Tls::new().authority(&another.pem))] {
            let why = refusal(&server.url, tls).await;
            assert!(why.contains("invalid peer certificate: UnknownIssuer"), "{engine:?}: {why}");
        }
        // The certificate is for another name.
        let url = server.url.replace("127.0.0.1", "localhost");
        let why = refusal(&url, Some(Tls::new().authority(&authority.pem))).await;
        assert!(
            why.contains("invalid peer certificate: certificate not valid for name"),
            "{engine:?}: {why}"
        );
    }
}

#[tokio::test]
async fn a_server_that_demands_a_certificate_takes_one_of_its_authority_and_no_other() {
    for engine in WITH_TLS {
        let (authority, another) = (Authority::new("ours"), Authority::new("another"));
        let server = Encrypted::start(engine, &authority, "yes");
        let trusting = Tls::new().authority(&authority.pem);
        let with = |by: &Authority| {
            let Identity { certificate, key } = by.sign("limiter");
            trusting.clone().client(certificate, key)
        };
        is_limited_by(RedisBackend::connect_with_tls(&server.url, with(&authority)).await.unwrap()).await;

        let why = refusal(&server.url, Some(trusting.clone())).await;
        assert!(why.contains("CertificateRequired"), "{engine:?}: {why}");
        let why = refusal(&server.url, Some(with(&another))).await;
        assert!(why.contains("UnknownCA") || why.contains("DecryptError"), "{engine:?}: {why}");
    }
}

#[tokio::test]
async fn what_cannot_be_used_is_an_error_early_and_repeats_no_key() {
    let url = "rediss://127.0.0.1:1/";
    let authority = Authority::new("ours");
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let why = |tls: &Tls| match RedisBackend::lazy_with_tls(url, tls.clone()) {
        Err(error @ ConfigError::RedisTls { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let ours = || Tls::new().authority(&authority.pem);
    let broken = authority.pem.replace("-----END", "-----EDN");
    let of_key = "TLS to Redis: invalid client key: not a private key in PEM";
    for (tls, expected) in [
        (Tls::new().authority(""), "TLS to Redis: invalid authority: no certificate in PEM found"),
        (Tls::new().authority(&one.key), "TLS to Redis: invalid authority: no certificate in PEM found"),
        (Tls::new().authority(broken), "TLS to Redis: invalid authority: not a certificate in PEM: "),
        (
            ours().client("no", &one.key),
            "TLS to Redis: invalid client certificate: no certificate in PEM found",
        ),
        (ours().client(&one.certificate, "s3cret"), of_key),
        (ours().client(&one.certificate, &one.certificate), of_key),
        (ours().client(&one.certificate, &other.key), "TLS to Redis: invalid client certificate or key: "),
    ] {
        let why = why(&tls);
        assert!(why.starts_with(expected), "{why}");
        assert!(!why.contains("s3cret") && !why.contains(one.key.lines().nth(1).unwrap()), "{why}");
        let error = RedisBackend::connect_with_tls(url, tls).await.unwrap_err();
        assert!(matches!(error, ConnectError::Url(ConfigError::RedisTls { .. })), "{error:?}");
    }
    let error = RedisBackend::lazy_with_tls("redis://127.0.0.1/", ours()).unwrap_err();
    assert_eq!(error.to_string(), "TLS to Redis: certificates need a URL that begins with rediss://");
    RedisBackend::lazy_with_tls(url, ours().client(&one.certificate, &one.key)).unwrap();
    RedisBackend::lazy_with_tls("redis://127.0.0.1/", Tls::new()).unwrap();
}

#[test]
fn debug_shows_no_certificate_and_no_key() {
    let tls = Tls::new().authority("an authority").client("a certificate", "a key");
    assert_eq!(format!("{tls:?}"), "Tls { has_authority: true, has_client: true }");
    let one = Authority::new("ours").sign("one");
    let tls = Tls::new().client(&one.certificate, &one.key);
    let backend = RedisBackend::lazy_with_tls("rediss://user:pa55word@127.0.0.1:1/", tls).unwrap();
    let text = format!("{backend:?}");
    assert!(text.contains("127.0.0.1:1") && !text.contains("BEGIN") && !text.contains("pa55word"), "{text}");
}
