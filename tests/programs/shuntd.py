"""The shuntd that serves this user in this network namespace."""
import ctypes
import fcntl
import os
import re
import socket
import struct


def pid():
    """The process that answers at its address; None: there is none."""
    with open("/proc/net/unix", errors="replace") as file:  # Names may be no text.
        names = re.findall(rf" @(shunt/\d+/user/{os.geteuid()})$", file.read(), re.MULTILINE)
    for name in names:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            try:
                control.connect("\0" + name)
            except ConnectionRefusedError:
                continue
            credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return struct.unpack("3i", credentials)[0]
    return None


def leave():
    """Goes to a network namespace where no shuntd is. False: this process may not."""
    new_network = 0x40000000  # CLONE_NEWNET
    if ctypes.CDLL(None).unshare(new_network) != 0:
        return False
    set_flags, up = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))
    return True
