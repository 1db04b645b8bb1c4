//! Why a host cannot be talked to.

use std::fmt;

use rustls::AlertDescription;

/// Why a host cannot be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nobody answers: nothing listens there, the way is closed, or who listens is stopped.
    Silent,
    /// Who answers has another key, or says that ours is another one.
    Key,
    /// Who answers speaks another version of the messages.
    Version,
    /// It is this very daemon.
    Itself,
    /// Who answers speaks something else, or breaks the rules.
    Protocol,
    /// Too many hosts are called at once.
    Busy,
    /// The configuration does not let it.
    Refused,
}

impl Fault {
    /// One sentence, without its end, for a person.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Silent => "no shuntd answers there",
            Self::Key => "its key is another one",
            Self::Version => "its shuntd is of another version",
            Self::Itself => "this is the same host",
            Self::Protocol => "what answers there is no shuntd",
            Self::Busy => "too many hosts are being called",
            Self::Refused => "it is in no network that the configuration names",
        }
    }

    /// What an error in a TLS conversation shows.
    pub(crate) fn of_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::AlertReceived(
                AlertDescription::AccessDenied
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::DecryptError
                | AlertDescription::UnknownCA,
            ) => Self::Key,
            _ => Self::Protocol,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
