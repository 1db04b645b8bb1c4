//! The key that hosts share.
//!
//! It is an Ed25519 private key in a file (PKCS #8 in PEM, RFC 8410), the same on each host. A host shows that it has the key
//! by its signature in the TLS handshake, and takes no other host for one of ours than one that shows the same. So there are
//! no certificates, no names and no dates, nothing is derived from anything, and `openssl genpkey -algorithm ed25519` makes
//! such a file, too.
//!
//! A file may have several keys, one after the other: this host shows the first, and accepts all. So a key is changed
//! without a moment in which hosts do not know each other: add the new one at the end on each host, then move it to the
//! front on each, then take the old one out.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer};
use rustls::sign::SigningKey;
use rustls::{SignatureAlgorithm, SignatureScheme};

/// No file of keys is longer.
const MOST: u64 = 16 << 10;
/// What comes before the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410, 7).
const HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The keys of a file.
#[derive(Clone)]
pub struct Keys {
    own: Arc<dyn SigningKey>,
    accepted: Vec<SubjectPublicKeyInfoDer<'static>>,
}

/// What is wrong with a file of keys.
#[derive(Debug)]
pub enum Wrong {
    /// It cannot be read.
    Unreadable(io::Error),
    /// It is a directory, a device, or too long.
    NoFile,
    /// Others than its owner may read or write it; its mode.
    Open(u32),
    /// It belongs to this user, who is neither root nor who asks.
    Strange(u32),
    /// It has no private key.
    Empty,
    /// This key in it, counted from 1, is no Ed25519 key.
    Kind(usize),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => {
                write!(f, "{error}: `shunt host key FILE` makes one")
            }
            Self::NoFile => f.write_str("it is no file of keys: `shunt host key FILE` makes one"),
            Self::Open(mode) => write!(
                f,
                "others than its owner may use it (mode {mode:03o}): `chmod 600` it, and make a new \
                 key if somebody has"
            ),
            Self::Strange(user) => write!(f, "it belongs to user {user}: `chown root` it"),
            Self::Empty => {
                f.write_str("there is no private key in it (PEM): `shunt host key FILE` makes one")
            }
            Self::Kind(number) => write!(
                f,
                "key {number} in it is no Ed25519 key: `shunt host key FILE` makes one"
            ),
        }
    }
}

impl std::error::Error for Wrong {}

impl Keys {
    /// Reads a file that nobody but its owner can read, who is root or the user of this process.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn read(path: &Path) -> Result<Self, Wrong> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            // A named pipe would have us wait.
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(Wrong::Unreadable)?;
        let about = file.metadata().map_err(Wrong::Unreadable)?;
        if !about.is_file() || about.len() > MOST {
            return Err(Wrong::NoFile);
        }
        if about.mode() & 0o077 != 0 {
            return Err(Wrong::Open(about.mode() & 0o777));
        }
        if about.uid() != 0 && about.uid() != rustix::process::geteuid().as_raw() {
            return Err(Wrong::Strange(about.uid()));
        }
        let mut text = Vec::new();
        file.take(MOST)
            .read_to_end(&mut text)
            .map_err(Wrong::Unreadable)?;
        Self::parse(&text)
    }

    /// The keys in such a text.
    ///
    /// # Errors
    /// When there is none, or one is of another kind.
    pub fn parse(text: &[u8]) -> Result<Self, Wrong> {
        let mut own = None;
        let mut accepted = Vec::new();
        for (i, der) in PrivateKeyDer::pem_slice_iter(text).enumerate() {
            let key = der.ok().and_then(|der| signing_key(der, &provider()));
            let key = key.ok_or(Wrong::Kind(i + 1))?;
            let public = key.public_key().ok_or(Wrong::Kind(i + 1))?;
            accepted.push(public.into_owned());
            own.get_or_insert(key);
        }
        let own = own.ok_or(Wrong::Empty)?;
        Ok(Self { own, accepted })
    }

    /// What this host signs by.
    pub(crate) fn own(&self) -> &Arc<dyn SigningKey> {
        &self.own
    }

    /// The public halves of all keys, this host's own first.
    pub(crate) fn accepted(&self) -> &[SubjectPublicKeyInfoDer<'static>] {
        &self.accepted
    }

    /// The public half of this host's own key, by which two hosts' files can be compared without showing them.
    #[must_use]
    pub fn public(&self) -> String {
        // The key itself is at the end (RFC 8410, 4).
        let bytes = self.accepted[0].as_ref();
        base64(&bytes[bytes.len().saturating_sub(32)..])
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}, {} in all)", self.public(), self.accepted.len())
    }
}

/// By what TLS computes.
pub(crate) fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

fn signing_key(
    der: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Option<Arc<dyn SigningKey>> {
    let key = provider.key_provider.load_private_key(der).ok()?;
    let is_it = key.algorithm() == SignatureAlgorithm::ED25519
        && key.choose_scheme(&[SignatureScheme::ED25519]).is_some();
    is_it.then_some(key)
}

/// The text of a file with a new key.
///
/// # Errors
/// When the kernel has no random bytes to give.
pub fn generate() -> io::Result<String> {
    let mut der = [0; HEAD.len() + 32];
    der[..HEAD.len()].copy_from_slice(&HEAD);
    let mut filled = HEAD.len();
    while filled < der.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut der[filled..], flags)?;
    }
    let text = base64(&der);
    Ok(format!(
        "-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"
    ))
}

/// RFC 4648, 4.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0, |bits: usize, byte| bits << 8 | usize::from(*byte));
        for place in 0..4 {
            let is_there = place <= three.len();
            let letter = LETTERS[bits >> (18 - 6 * place) & 63];
            text.push(if is_there { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_an_ed25519_key_of_its_own() {
        let texts = [generate().unwrap(), generate().unwrap()];
        let keys = texts
            .each_ref()
            .map(|text| Keys::parse(text.as_bytes()).unwrap());
        assert_ne!(keys[0].public(), keys[1].public());
        let again = Keys::parse(texts[0].as_bytes()).unwrap();
        assert_eq!(again.public(), keys[0].public());
        assert!(texts[0].lines().all(|line| line.len() <= 64));
    }

    /// RFC 8410, 10.3, whose public half is that of 10.1.
    #[test]
    fn the_key_of_the_standard_has_the_public_half_that_is_there() {
        let text = "-----BEGIN PRIVATE KEY-----\n\
                    MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
                    -----END PRIVATE KEY-----\n";
        let keys = Keys::parse(text.as_bytes()).unwrap();
        assert_eq!(
            keys.public(),
            "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="
        );
    }

    #[test]
    fn the_first_of_several_keys_is_shown_and_all_are_accepted() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        let keys = Keys::parse(format!("{one}{other}").as_bytes()).unwrap();
        assert_eq!(keys.public(), Keys::parse(one.as_bytes()).unwrap().public());
        assert_eq!(keys.accepted().len(), 2);
        assert!(!format!("{keys:?}").contains(one.lines().nth(1).unwrap()));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(matches!(Keys::parse(b""), Err(Wrong::Empty)));
        assert!(matches!(Keys::parse(b"secret"), Err(Wrong::Empty)));
        let text = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(matches!(Keys::parse(text.as_bytes()), Err(Wrong::Kind(1))));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let path = std::env::temp_dir().join(format!("shunt-key-{}", std::process::id()));
        let set = |mode| {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::write(&path, generate().unwrap()).unwrap();
        set(0o640);
        assert!(matches!(Keys::read(&path), Err(Wrong::Open(0o640))));
        set(0o600);
        assert!(Keys::read(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Keys::read(&path), Err(Wrong::Unreadable(_))));
        assert!(matches!(Keys::read(Path::new("/")), Err(Wrong::NoFile)));
    }
}
