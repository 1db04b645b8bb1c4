//! TLS as two daemons speak it: version 1.3 only, with raw public keys (RFC 7250) at both ends, each of which must be one
//! that this host's file has. Nothing is resumed and no data goes early, so each conversation has keys of its own, which are gone
//! with it: who gets hold of the shared key later cannot read what was said before.
//!
//! Both ends sign by the same key. A signature for one side is none for the other, as what is signed says which side
//! it is (RFC 8446, 4.4.3), so nobody can send a host its own words back.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, Error, PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::key::{Keys, provider};

/// What is spoken inside, so that the key is of no use for anything else.
pub(crate) const INSIDE: &[u8] = b"shunt-hosts";
/// What may wait in clear to be encrypted.
const ROOM: usize = 64 << 10;

/// Both sides of a conversation, as this host takes part in it.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    pub(crate) fn new(keys: &Keys) -> Result<Self, Error> {
        let provider = Arc::new(provider());
        let versions = [&rustls::version::TLS13];
        let shown = keys.accepted()[0].as_ref().to_vec();
        let own = CertifiedKey::new(vec![CertificateDer::from(shown)], Arc::clone(keys.own()));
        let own = Arc::new(own);
        let pinned = Arc::new(Pinned::new(keys, &provider));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&pinned) as Arc<dyn ServerCertVerifier>)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                Arc::clone(&own),
            )));
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![INSIDE.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)?
            .with_client_cert_verifier(pinned)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![INSIDE.to_vec()];
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// One that does not say what is spoken inside.
    #[cfg(test)]
    pub(crate) fn for_anything(self) -> Self {
        let mut server = (*self.server).clone();
        server.alpn_protocols.clear();
        Self {
            server: Arc::new(server),
            ..self
        }
    }

    /// A conversation with whoever is at this address.
    pub(crate) fn call(&self, address: IpAddr) -> Result<Connection, Error> {
        let name = ServerName::IpAddress(address.into());
        let mut call = ClientConnection::new(Arc::clone(&self.client), name)?;
        call.set_buffer_limit(Some(ROOM));
        Ok(call.into())
    }

    /// One with who has called.
    pub(crate) fn answer(&self) -> Result<Connection, Error> {
        let mut answer = ServerConnection::new(Arc::clone(&self.server))?;
        answer.set_buffer_limit(Some(ROOM));
        Ok(answer.into())
    }
}

/// Takes nobody for one of ours but who has one of these keys.
#[derive(Debug)]
struct Pinned {
    accepted: Vec<SubjectPublicKeyInfoDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn new(keys: &Keys, provider: &CryptoProvider) -> Self {
        Self {
            accepted: keys.accepted().to_vec(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    /// With raw public keys the place of the certificate has the key itself.
    fn knows(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        let is_it = |accepted: &SubjectPublicKeyInfoDer<'_>| accepted.as_ref() == key.as_ref();
        if self.accepted.iter().any(is_it) {
            Ok(())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

const OLD: Error = Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.knows(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(OLD)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.knows(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(OLD)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
