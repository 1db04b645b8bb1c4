//! What to do about each reason.

use shunt_abi::Reason;

/// What brings such a connection into shared memory; `None`: nothing that a user could do.
pub(crate) fn of(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::Pending => {
            "wait: a connection is moved once a few calls have shown that it lives (--upgrade=eager does it at once)"
        }
        Reason::PeerPlain => "run the program at the other end by `shunt run`, too",
        Reason::NotLocal => {
            "if the other end is on this host, let root run `shuntd --system`, which finds ends in all network namespaces; if it is on another one, name its network in [hosts] of shunt.toml(5)"
        }
        Reason::ShortLived => "keep connections open in a pool, or use --upgrade=eager",
        Reason::Disabled => "start the program without --upgrade=off (SHUNT_UPGRADE)",
        Reason::NoDaemon | Reason::DaemonLost => {
            "start a shuntd: `shunt run -- true` does, or root's `shuntd --system`"
        }
        Reason::Policy => "see shunt.toml(5) for the rules of this host",
        Reason::NoResources => {
            "raise the limits of memory and descriptors (`ulimit -a`), or the container's"
        }
        Reason::HostSilent => {
            "start `shuntd --system` on the other host, with the same key in [hosts] of its shunt.toml(5); `shunt host check ADDRESS` tells whether it answers"
        }
        Reason::HostKey => {
            "give both hosts the same key file, which [hosts] in shunt.toml(5) names"
        }
        Reason::HostVersion => "install the same version of Shunt on both hosts",
        Reason::OtherHost => {
            "set `rdma = true` in [hosts] of shunt.toml(5) on both hosts: it is new, and off by default"
        }
        Reason::NoDevice | Reason::DeviceKind => {
            "`shunt doctor` on both hosts tells which devices there are"
        }
        Reason::Pinned => {
            "raise the limit on locked memory (`ulimit -l`), or `pinned` in [hosts] of shunt.toml(5)"
        }
        Reason::Quota => "raise the limits in shunt.toml(5), or close connections",
        Reason::Forked => {
            "start the program with --upgrade=eager, so that it is moved before the fork"
        }
        Reason::Held => "close the copy of the socket in the other process",
        Reason::IoUring => "`shunt run --io-uring=deny`, if the program can do without",
        Reason::Confined => "allow what Shunt needs in the program's seccomp filter",
        Reason::Requested => "nothing: after some more calls it is moved again",
        Reason::NoProof => {
            "allow pidfd_getfd(2) to shuntd, or let root run `shuntd --system`; see `shunt doctor`"
        }
        Reason::OtherUser => {
            "run both as one user, or let root run `shuntd --system` with cross_user, see shunt.toml(5)"
        }
        Reason::OtherNamespace => {
            "let root run `shuntd --system` on the host; `shunt container print` tells what the container needs"
        }
        Reason::Version => {
            "restart the daemon, and programs that were started before the last upgrade"
        }
        Reason::Older => "open the connection again",
        Reason::Protocol => "the other end is damaged or hostile: look at that program",
        Reason::Unused => "nothing: it is moved with the next bytes",
        Reason::PeerRefused | Reason::PeerLeft => "look at what the other end says",
        Reason::Inherited => {
            "open it close-on-exec (SOCK_CLOEXEC), if the program that is executed does not need it"
        }
        Reason::Stdio => {
            "read and write the descriptor itself, not by fdopen(3) nor as standard input or output"
        }
        Reason::SocketOption => {
            "leave SO_RCVLOWAT at one, and do without filters, time stamps and kernel TLS, where the program can"
        }
        Reason::Urgent => "do without MSG_OOB and MSG_ZEROCOPY, where the program can",
        Reason::AsyncIo => "wait by poll or epoll, not by signals or aio, where the program can",
        Reason::Edge => {
            "wait in one edge-triggered set only, and soon after the connection is made"
        }
        Reason::UnknownSet => {
            "have the program make its epoll set itself, not take one over from another program"
        }
        Reason::Passed
        | Reason::OneShot
        | Reason::Busy
        | Reason::HalfClosed
        | Reason::NotEstablished
        | Reason::SelfConnected
        | Reason::Blocked
        | Reason::HolderDied
        | Reason::Ended
        | Reason::SharedTable => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_of_cross_user_is_told_of_the_daemon_that_heeds_it() {
        let of_users = |text: &&str| text.contains("cross_user");
        let texts = Reason::ALL.iter().flat_map(|&r| [Some(r.text()), of(r)]);
        let texts: Vec<_> = texts.flatten().filter(of_users).collect();
        assert_eq!(texts.len(), 2);
        for text in texts {
            assert!(text.contains("`shuntd --system`"), "{text}");
        }
    }
}
