//! Pages in which processes note which of them had a core, one for each user in each network namespace
//! ([`shunt_abi::cores`]): who shares one sees the others in `shunt ss`, too.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use rustix::fs::{MemfdFlags, SealFlags};
use shunt_abi::cores::SIZE;

/// The pages that some client has.
#[derive(Debug, Default)]
pub(crate) struct Pages(HashMap<(u32, u64), Weak<OwnedFd>>);

impl Pages {
    /// The page of a user in a network namespace; a new one for the first client.
    pub(crate) fn of(&mut self, user: u32, netns: u64) -> io::Result<Rc<OwnedFd>> {
        let known = self.0.get(&(user, netns)).and_then(Weak::upgrade);
        if let Some(page) = known {
            return Ok(page);
        }
        self.0.retain(|_, page| page.strong_count() > 0);
        let page = Rc::new(make()?);
        self.0.insert((user, netns), Rc::downgrade(&page));
        Ok(page)
    }
}

/// A page that all can write, and nobody can resize.
fn make() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("shunt-cores", flags)?;
    rustix::fs::ftruncate(&file, SIZE as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_page_in_a_namespace_as_long_as_a_client_has_it() {
        let mut pages = Pages::default();
        let page = pages.of(1, 7).unwrap();
        assert!(Rc::ptr_eq(&page, &pages.of(1, 7).unwrap()));
        let others = [pages.of(2, 7).unwrap(), pages.of(1, 8).unwrap()];
        assert!(others.iter().all(|other| !Rc::ptr_eq(&page, other)));
        assert!(rustix::fs::ftruncate(&page, 0).is_err());
        drop((page, others));
        pages.of(3, 7).unwrap();
        assert_eq!(pages.0.len(), 1);
    }
}
