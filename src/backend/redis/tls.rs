//! TLS certificates: the authorities that a connection trusts, and its client certificate.
//!
//! The connection uses rustls and a crate with Mozilla's list of public authorities. So the list is the same on every machine, and
//! a connection reads no system files. An authority from the caller replaces the list.

use std::{fmt, sync::Arc};

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::url::is_tls;
use crate::error::ConfigError;

/// TLS settings of the connections to Redis, for [`RedisBackendBuilder::tls`](super::RedisBackendBuilder::tls).
///
/// By default a `rediss://` connection trusts the public authorities and sends no client certificate. It always verifies the
/// server's name and the dates of its certificate.
///
/// ```
/// use tower_sliding_window::redis::Tls;
///
/// # fn tls(read: impl Fn(&str) -> std::io::Result<Vec<u8>>) -> std::io::Result<Tls> {
/// let tls = Tls::new().authority(read("ca.pem")?).client(read("client.pem")?, read("client.key")?);
/// # Ok(tls)
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    authorities: Vec<u8>,
    /// A certificate and its private key.
    client: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether a backend was given these settings, so that no connection may be without TLS.
    is_required: bool,
}

impl Tls {
    /// Returns the default settings: public authorities, and no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an authority to trust, as one or more certificates in PEM. The public authorities are no longer trusted.
    #[must_use]
    pub fn authority(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.authorities.extend_from_slice(pem.as_ref());
        // The next certificate must begin a new line, and an empty PEM must count as given.
        self.authorities.push(b'\n');
        self
    }

    /// Sets the client certificate, for a server that requires one. Both arguments are in PEM: the certificate with its
    /// intermediate certificates, if any, and the private key as PKCS #8, PKCS #1 or SEC 1.
    #[must_use]
    pub fn client(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.client = Some((certificate.as_ref().to_vec(), key.as_ref().to_vec()));
        self
    }

    /// Returns the settings of a backend that was given them.
    pub(super) fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// Returns an error if a backend was given settings, because it does not make the connections.
    pub(super) fn validate_unused(&self) -> Result<(), ConfigError> {
        if self.is_required { Err(invalid(NEEDS_URL)) } else { Ok(()) }
    }

    fn is_custom(&self) -> bool {
        !self.authorities.is_empty() || self.client.is_some()
    }

    /// Returns an error if the settings do not suit all URLs, or if a certificate or the private key is invalid.
    pub(super) fn validate<'a>(&self, urls: impl IntoIterator<Item = &'a String>) -> Result<(), ConfigError> {
        if !self.is_required {
            return Ok(());
        }
        if !urls.into_iter().all(|url| is_tls(url)) {
            return Err(invalid(NEEDS_URL));
        }
        let mut trusted = RootCertStore::empty();
        if !self.authorities.is_empty() {
            for certificate in certificates(&self.authorities, "authority")? {
                let added = trusted.add(certificate);
                added.map_err(|error| invalid(format!("invalid authority: {error}")))?;
            }
        }
        let Some((certificate, key)) = &self.client else { return Ok(()) };
        let chain = certificates(certificate, "client certificate")?;
        // The parser's error may repeat a part of the private key.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            invalid(
                "invalid client key: not a private key in PEM: give the contents of the file, not its path",
            )
        })?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?;
        let config = config.with_root_certificates(trusted).with_client_auth_cert(chain, key);
        config.map(|_| ()).map_err(|error| invalid(format!("invalid client certificate or key: {error}")))
    }

    /// Returns how to connect to a server with these settings. The client crate keeps the certificates in the address.
    pub(super) fn apply(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if !self.is_custom() {
            return Ok(info);
        }
        let client = self.client.clone();
        let certificates = TlsCertificates {
            client_tls: client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: Some(self.authorities.clone()).filter(|pem| !pem.is_empty()),
        };
        Ok(Client::build_with_tls(info, certificates)?.get_connection_info().clone())
    }
}

/// Installs a rustls `CryptoProvider` before a connection, unless the process has installed one. Without one, rustls panics if
/// several are compiled in.
pub(super) fn prepare(address: &ConnectionAddr) {
    if matches!(address, ConnectionAddr::TcpTls { .. }) && CryptoProvider::get_default().is_none() {
        // Another thread may have installed one meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

/// Parses certificates in PEM. `what` is their name in the error text.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // The parser's error may contain a list of bytes.
    let all = all.map_err(|_| invalid(format!("invalid {what}: not a complete certificate in PEM")))?;
    if all.is_empty() {
        return Err(invalid(format!(
            "invalid {what}: no certificate in PEM found: give the contents of the file, not its path"
        )));
    }
    Ok(all)
}

const NEEDS_URL: &str = "these settings need a URL that begins with rediss://";

fn invalid(reason: impl Into<String>) -> ConfigError {
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
