//! Why a connection is not (or no longer) shunted: one catalogue, counted in
//! the statistics, shown by `shunt ss`, printed by `shunt reasons`.

/// Builds the enum, its names and its texts from one table.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $text:literal;)*) => {
        /// Why a connection stays on, or went back to, kernel TCP.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $variant = $number,)*
        }

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable name used in statistics and in `shunt ss`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One sentence for a person: what happened and what to do, if anything.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The reason with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

reasons! {
    Pending = 1, "PENDING", "The other end has not been paired yet.";
    PeerPlain = 2, "PEER_PLAIN", "The other end does not run under Shunt, or stays on TCP for a reason of its own.";
    NotLocal = 3, "NOT_LOCAL", "The other end is on another host (in no network that [hosts] in shunt.toml(5) names), or in a network namespace where shuntd has not found it.";
    ShortLived = 4, "SHORT_LIVED", "The connection ended before it had shown that it would live.";
    Disabled = 5, "DISABLED", "Upgrades are switched off (--upgrade=off).";
    NoDaemon = 6, "NO_DAEMON", "No compatible shuntd answers: start one with `shunt run` or `shuntd`.";
    Policy = 7, "POLICY", "The daemon's policy (shunt.toml(5)) denies this pair, or has since it was changed.";
    NoResources = 8, "NO_RESOURCES", "Memory, descriptors or slots ran out.";
    Forked = 9, "FORKED", "The socket was shared by fork before it could be upgraded, or with a child in another PID namespace.";
    Inherited = 10, "INHERITED", "The socket came through exec from a program that opened it.";
    Passed = 11, "PASSED", "The socket was passed to another process by SCM_RIGHTS.";
    Stdio = 12, "STDIO", "The socket is a standard stream or has a stdio stream on it.";
    Urgent = 13, "URGENT", "The program sends urgent (out-of-band) data, or with another flag that only the kernel serves (MSG_ZEROCOPY, MSG_FASTOPEN).";
    SocketOption = 14, "SOCKET_OPTION", "A socket option in use needs the kernel's TCP.";
    AsyncIo = 15, "ASYNC_IO", "The program asked for SIGIO (O_ASYNC, F_SETOWN, F_SETSIG), or has others read and write for it (aio(7), io_submit(2)).";
    OneShot = 16, "ONE_SHOT", "A one-shot registration must be re-armed before the upgrade.";
    Busy = 17, "BUSY", "A thread was inside a kernel call on the socket whenever an upgrade was tried.";
    HalfClosed = 18, "HALF_CLOSED", "One direction was shut down, so the other finishes on TCP.";
    NotEstablished = 19, "NOT_ESTABLISHED", "The connection was closing before it could be upgraded.";
    SelfConnected = 20, "SELF_CONNECTED", "The socket is connected to itself.";
    PeerRefused = 21, "PEER_REFUSED", "The other end could not be upgraded; its own reason says why.";
    DaemonLost = 22, "DAEMON_LOST", "shuntd went away before the connection was paired.";
    Version = 23, "VERSION", "The daemon speaks another version: restart it.";
    IoUring = 24, "IO_URING", "The process uses the connection by io_uring, or may do so unseen; such calls cannot be served from shared memory.";
    Blocked = 25, "BLOCKED", "A full ring had to wait where only the kernel can wake the sender, or takes more small messages, so TCP took over.";
    Protocol = 26, "PROTOCOL", "The other end wrote something impossible into shared memory; the connection was reset.";
    Edge = 27, "EDGE", "An edge-triggered set has not been waited on since the pairing, or several sets are.";
    HolderDied = 28, "HOLDER_DIED", "A process that shared the connection by fork was killed while it took bytes; how many is not known, so the connection was reset.";
    PeerLeft = 29, "PEER_LEFT", "The other end went back to TCP; its own reason says why.";
    Held = 30, "HELD", "Another process has a copy of the socket, from where it came, or taken without a word.";
    Confined = 31, "CONFINED", "The process may make few system calls only (seccomp), and Shunt needs others.";
    Ended = 32, "ENDED", "The other end closed or shut down before all was read, so TCP delivered the rest.";
    Requested = 33, "REQUESTED", "`shunt downgrade` sent it back to TCP.";
    NoProof = 34, "NO_PROOF", "shuntd may not look at the process's sockets (pidfd_getfd is refused), so it cannot tell whether the claim is true.";
    OtherUser = 35, "OTHER_USER", "The ends belong to different users, or the process has changed its user; a shuntd pairs ends of one user, and `shuntd --system` those of all with cross_user in shunt.toml(5).";
    OtherNamespace = 36, "OTHER_NAMESPACE", "The other end is on this host, but in another network namespace (a container).";
    Unused = 37, "UNUSED", "This end was ready for shared memory, but nothing was sent through it.";
    UnknownSet = 38, "UNKNOWN_SET", "It is in an epoll set that Shunt does not know: another program made that, or memory had run out.";
    Older = 39, "OLDER", "Its addresses are of two network namespaces or hosts, and it was made before the shuntd that could tell which.";
    Quota = 40, "QUOTA", "The user or the container of an end, or the host, has as many links, connections or as much memory of Shunt as it may (limits in shunt.toml(5)).";
    HostSilent = 41, "HOST_SILENT", "The other end is on another host, where no shuntd answers.";
    HostKey = 42, "HOST_KEY", "The shuntd of the other end's host has another key.";
    HostVersion = 43, "HOST_VERSION", "The shuntd of the other end's host speaks another version.";
    OtherHost = 44, "OTHER_HOST", "Both ends run under Shunt, on two hosts whose shuntds know each other; `rdma` is not on in [hosts] of one of them, or one of both programs cannot use it.";
    NoDevice = 45, "NO_DEVICE", "The other end is on another host, and one of the two hosts has no RDMA device with an active port.";
    DeviceKind = 46, "DEVICE_KIND", "The other end is on another host, and one of the two hosts has only RDMA devices of kinds that Shunt cannot use (iWARP, EFA).";
    Pinned = 47, "PINNED", "The other end is on another host, and a process of one of them may not pin as much memory as RDMA needs (RLIMIT_MEMLOCK, or [hosts] in shunt.toml(5)).";
    SharedTable = 48, "SHARED_TABLE", "The process has shared its table of descriptors with another one (clone(2) with CLONE_FILES).";
}

impl Reason {
    /// Whether it is said of a connection as long as nobody has looked where the other end is:
    /// shuntd may know better.
    #[must_use]
    pub const fn is_provisional(self) -> bool {
        matches!(self, Self::Pending | Self::PeerPlain | Self::NotLocal)
    }

    /// Whether it is said because the other end is on another host: other connections to there would hear the same.
    #[must_use]
    pub const fn is_afar(self) -> bool {
        matches!(
            self,
            Self::NotLocal
                | Self::HostSilent
                | Self::HostKey
                | Self::HostVersion
                | Self::OtherHost
                | Self::NoDevice
                | Self::DeviceKind
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn numbers_and_names_are_unique_and_round_trip() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_number(reason as u8), Some(reason));
        }
        assert_eq!(Reason::from_number(0), None);
    }
}
