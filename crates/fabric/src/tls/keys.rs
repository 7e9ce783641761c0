//! The key pair that a group's secret is, and TLS with nothing but that.

use crate::FabricError;
use ring::digest::{Context, SHA256};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::ring::{default_provider, kx_group::X25519, sign::any_eddsa_type};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerMisbehaved, ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// What stands before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// What the key is derived for: another use of the secret gets another key.
const PURPOSE: &[u8] = b"forebay fabric tls 1";
#[cfg(feature = "ucx")]
const PROOF_PURPOSE: &[u8] = b"forebay fabric ucx 1";

/// The name that TLS wants, and no verifier looks at.
const SERVER_NAME: &str = "forebay.invalid";

/// A group's key pair, made from its secret: both sides of a connection have the same one, and
/// accept no other. Raw public keys (RFC 7250), TLS 1.3, no certificates and no resumption.
#[derive(Clone)]
pub struct GroupKey {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    public: Vec<u8>,
    #[cfg(feature = "ucx")]
    proof: ring::hmac::Key,
}

struct SeedBytes;

impl KeyType for SeedBytes {
    fn len(&self) -> usize {
        32
    }
}

impl GroupKey {
    /// Derives the key pair by HKDF-SHA256; the same secret gives the same one everywhere.
    ///
    /// # Errors
    /// [`FabricError::System`] if the cryptography fails, which it does not by itself.
    pub fn derive(secret: &[u8; 32]) -> Result<Self, FabricError> {
        Self::try_derive(secret)
            .map_err(|error| FabricError::System(format!("the group's key: {error}")))
    }

    fn try_derive(secret: &[u8; 32]) -> Result<Self, Error> {
        let failed = |_| Error::General("HKDF failed".into());
        let mut pkcs8 = [0; 48];
        pkcs8[..16].copy_from_slice(&PKCS8_HEAD);
        let extracted = Salt::new(HKDF_SHA256, &[]).extract(secret);
        let derived = extracted.expand(&[PURPOSE], SeedBytes).map_err(failed)?;
        derived.fill(&mut pkcs8[16..]).map_err(failed)?;
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(&pkcs8[..]))?;
        let public = key.public_key().ok_or(Error::General("no public key".into()))?.to_vec();
        let pair = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.clone())], key));

        // AES has instructions wherever there are nodes of a cluster; ChaCha20 is for the others.
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256],
            kx_groups: vec![X25519],
            ..default_provider()
        });
        let verifier = Arc::new(ThisKey {
            public: public.clone(),
            algorithms: provider.signature_verification_algorithms,
        });
        let versions = &[&rustls::version::TLS13];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                pair.clone(),
            )));
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(pair)));
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
            public,
            #[cfg(feature = "ucx")]
            proof: {
                let purpose = &[PROOF_PURPOSE];
                extracted.expand(purpose, ring::hmac::HMAC_SHA256).map_err(failed)?.into()
            },
        })
    }

    /// What proves that this side has the secret, where the carrier does not.
    #[cfg(feature = "ucx")]
    pub(crate) fn proof(&self) -> &ring::hmac::Key {
        &self.proof
    }

    /// What names a group among those that could have this secret.
    pub fn group_id(&self, group: &str) -> [u8; 32] {
        let mut hash = Context::new(&SHA256);
        hash.update(&self.public);
        hash.update(group.as_bytes());
        let mut id = [0; 32];
        id.copy_from_slice(hash.finish().as_ref());
        id
    }

    /// TLS of the side that connects; for tools that speak to a fabric by hand, too.
    pub fn client(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        // The name is a constant, and a good one.
        let name = ServerName::try_from(SERVER_NAME)
            .unwrap_or(ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
        (self.client.clone(), name)
    }

    /// TLS of the side that listens.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }
}

/// Accepts one public key.
#[derive(Debug)]
struct ThisKey {
    public: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ThisKey {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if shown.as_ref() == self.public {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// TLS 1.2 is not spoken.
fn not_spoken() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
}

impl ServerCertVerifier for ThisKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        not_spoken()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for ThisKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        not_spoken()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_secret_is_the_same_key() {
        let key = |byte| GroupKey::derive(&[byte; 32]).unwrap();
        assert_eq!(key(1).public, key(1).public);
        assert_ne!(key(1).public, key(2).public);
        assert_eq!(key(1).group_id("a"), key(1).group_id("a"));
        assert_ne!(key(1).group_id("a"), key(1).group_id("b"));
        assert_ne!(key(1).group_id("a"), key(2).group_id("a"));
        assert_eq!(key(1).client().1, ServerName::try_from(SERVER_NAME).unwrap());
    }
}
