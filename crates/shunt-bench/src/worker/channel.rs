//! What carries bytes, behind one face.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::{Context, Result, bail};

use super::Carrier;
use crate::sys;

/// A byte stream in both directions.
pub(crate) trait Channel {
    /// Sends all of it.
    fn send(&mut self, bytes: &[u8]) -> Result<()>;
    /// Receives some bytes; 0 at the end of the stream.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize>;
    /// Nothing more will be sent.
    fn finish(&mut self) -> Result<()>;

    /// Fills the buffer; `false` if the stream ends instead.
    #[inline]
    fn receive_all(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut got = 0;
        while got < buffer.len() {
            match self.receive(&mut buffer[got..])? {
                0 if got == 0 => return Ok(false),
                0 => bail!("the stream ended within a message"),
                n => got += n,
            }
        }
        Ok(true)
    }
}

/// A kernel's stream. One type for all kinds, so that all run the same code.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Pipe { from: File, to: Option<File> },
}

impl Stream {
    /// Two pipes that the driver has left open for this process: "in,out".
    pub(crate) fn inherited(address: &str) -> Result<Self> {
        let (from, to) = address.split_once(',').context("not two pipes")?;
        Ok(Self::Pipe {
            from: sys::inherited(from.parse()?),
            to: Some(sys::inherited(to.parse()?)),
        })
    }
}

impl Stream {
    /// Its descriptor.
    pub(crate) fn number(&self) -> i32 {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Pipe { from, .. } => from.as_raw_fd(),
        }
    }

    /// Calls on it fail rather than wait.
    pub(crate) fn do_not_wait(&self) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true)?,
            Self::Unix(stream) => stream.set_nonblocking(true)?,
            Self::Pipe { .. } => bail!("a pipe waits"),
        }
        Ok(())
    }
}

impl Channel for Stream {
    #[inline]
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes)?,
            Self::Unix(stream) => stream.write_all(bytes)?,
            Self::Pipe { to: Some(to), .. } => to.write_all(bytes)?,
            Self::Pipe { to: None, .. } => bail!("the pipe is closed"),
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let result = match self {
                Self::Tcp(stream) => stream.read(buffer),
                Self::Unix(stream) => stream.read(buffer),
                Self::Pipe { from, .. } => from.read(buffer),
            };
            match result {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return Ok(other?),
            }
        }
    }

    fn finish(&mut self) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Self::Unix(stream) => stream.shutdown(Shutdown::Write)?,
            Self::Pipe { to, .. } => drop(to.take()),
        }
        Ok(())
    }
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, String),
}

impl Listener {
    pub(crate) fn bind(carrier: Carrier, address: &str) -> Result<Self> {
        Ok(if carrier == Carrier::Unix {
            Self::Unix(UnixListener::bind(address)?, address.to_owned())
        } else {
            Self::Tcp(TcpListener::bind("127.0.0.1:0")?)
        })
    }

    pub(crate) fn address(&self) -> Result<String> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.to_string(),
            Self::Unix(_, path) => path.clone(),
        })
    }

    pub(crate) fn accept(&self) -> Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Self::Unix(listener, _) => Stream::Unix(listener.accept()?.0),
        })
    }
}

pub(crate) fn connect(carrier: Carrier, address: &str) -> Result<Stream> {
    Ok(if carrier == Carrier::Unix {
        Stream::Unix(UnixStream::connect(address)?)
    } else {
        Stream::Tcp(TcpStream::connect(address)?)
    })
}

/// Standard input and output.
pub(crate) struct Standard(Stream);

impl Standard {
    /// A sink keeps its output for its report.
    pub(crate) fn open(writes: bool) -> Self {
        Self(Stream::Pipe {
            from: sys::inherited(0),
            to: writes.then(|| sys::inherited(1)),
        })
    }
}

impl Channel for Standard {
    #[inline]
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.send(bytes)
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.0.receive(buffer)
    }

    /// Closes standard output.
    fn finish(&mut self) -> Result<()> {
        self.0.finish()
    }
}
