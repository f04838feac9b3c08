//! TLS: whom to trust, and who we are.
//!
//! The connection itself is rustls, with the public authorities of Mozilla's list as a crate brings them: the same on every
//! machine, and no file of the system is read whenever a connection is made. An authority of one's own takes their place.

use std::{fmt, sync::Arc};

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::url::is_tls;
use crate::error::ConfigError;

/// Whom a connection to Redis trusts, and who it says that it is: for
/// [`RedisBackend::connect_with_tls`](crate::RedisBackend::connect_with_tls).
///
/// Unless an authority is given, those are trusted that browsers trust, and `rediss://` is enough. Names and dates are always
/// checked.
///
/// ```
/// use tower_sliding_window::Tls;
///
/// # fn tls(read: impl Fn(&str) -> std::io::Result<Vec<u8>>) -> std::io::Result<Tls> {
/// let tls = Tls::new().authority(read("ca.pem")?).client(read("client.pem")?, read("client.key")?);
/// # Ok(tls)
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    authorities: Vec<u8>,
    /// A certificate and its key.
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Trusts whom browsers trust, and has no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts this authority, and those that are given likewise, and no others: one or more certificates in PEM.
    #[must_use]
    pub fn authority(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.authorities.extend_from_slice(pem.as_ref());
        // So that the next one begins a line of its own; and what is empty is not taken for none.
        self.authorities.push(b'\n');
        self
    }

    /// Shows this certificate to a server that asks for one, with those that lead from it to its authority, if there are any.
    /// Both in PEM; the key as PKCS #8, PKCS #1 or SEC 1.
    #[must_use]
    pub fn client(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.client = Some((certificate.as_ref().to_vec(), key.as_ref().to_vec()));
        self
    }

    fn is_given(&self) -> bool {
        !self.authorities.is_empty() || self.client.is_some()
    }

    /// Whether a connection to this URL can be made with it.
    pub(super) fn validate(&self, url: &str) -> Result<(), ConfigError> {
        if !self.is_given() {
            return Ok(());
        }
        if !is_tls(url) {
            return Err(wrong("certificates are for a URL that begins with rediss://"));
        }
        let mut trusted = RootCertStore::empty();
        if !self.authorities.is_empty() {
            for certificate in certificates(&self.authorities, "the authority")? {
                let added = trusted.add(certificate);
                added.map_err(|error| wrong(format!("the authority cannot be used: {error}")))?;
            }
        }
        let Some((certificate, key)) = &self.client else { return Ok(()) };
        let chain = certificates(certificate, "the client's certificate")?;
        // What is wrong with a key is not repeated.
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| wrong("the client's key is no private key in PEM"))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(error.to_string()))?;
        let config = config.with_root_certificates(trusted).with_client_auth_cert(chain, key);
        config.map(|_| ()).map_err(|error| wrong(format!("the client's certificate and key: {error}")))
    }

    pub(super) fn open(&self, info: ConnectionInfo) -> RedisResult<Client> {
        if !self.is_given() {
            return Client::open(info);
        }
        let client = self.client.clone();
        let certificates = TlsCertificates {
            client_tls: client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: Some(self.authorities.clone()).filter(|pem| !pem.is_empty()),
        };
        Client::build_with_tls(info, certificates)
    }
}

/// Before a connection is made: rustls takes its cryptography from what the process has chosen. Where nothing is chosen it
/// takes what is compiled in, and panics if that is more than one.
pub(super) fn prepare(address: &ConnectionAddr) {
    if matches!(address, ConnectionAddr::TcpTls { .. }) && CryptoProvider::get_default().is_none() {
        // Somebody else may have been quicker.
        let _ = ring::default_provider().install_default();
    }
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| wrong(format!("{what} is no certificate in PEM: {error}")))?;
    if all.is_empty() {
        return Err(wrong(format!("{what} is no certificate in PEM: there is none in it")));
    }
    Ok(all)
}

fn wrong(reason: impl Into<String>) -> ConfigError {
    ConfigError::RedisTls { reason: reason.into() }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("has_authority", &!self.authorities.is_empty())
            .field("has_client", &self.client.is_some())
            .finish()
    }
}
