//! Pages in which processes note which of them had a core ([`shunt_abi::cores`]). A *group* is a user in a network namespace: who
//! shares its page sees the others in `shunt ss`, too. Two groups between which there are links share another page.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use rustix::fs::{MemfdFlags, SealFlags};
use shunt_abi::cores::{BESIDE, SIZE};

/// A user, and a network namespace by its cookie.
pub(crate) type Group = (u32, u64);

/// The pages that some client has: of one group (twice), or of two.
#[derive(Debug, Default)]
pub(crate) struct Pages(HashMap<[Group; 2], Weak<OwnedFd>>);

impl Pages {
    /// The page of a group's processes that have links with the other's; a new one for the first client.
    pub(crate) fn of(&mut self, group: Group, other: Group) -> io::Result<Rc<OwnedFd>> {
        let both = [group.min(other), group.max(other)];
        let known = self.0.get(&both).and_then(Weak::upgrade);
        if let Some(page) = known {
            return Ok(page);
        }
        self.0.retain(|_, page| page.strong_count() > 0);
        let page = Rc::new(make()?);
        self.0.insert(both, Rc::downgrade(&page));
        Ok(page)
    }
}

/// The pages that a client was given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    own: Option<Rc<OwnedFd>>,
    /// With other groups, the oldest of which makes room.
    beside: [Option<Rc<OwnedFd>>; BESIDE],
    /// How many there have been beside its own.
    count: usize,
}

impl Given {
    /// Gives it the page of its own group, or one that this shares with another one. At which place it is; `None`: it has it.
    pub(crate) fn add(&mut self, page: &Rc<OwnedFd>, is_own: bool) -> Option<u32> {
        let has = |given: &Option<Rc<OwnedFd>>| given.as_ref().is_some_and(|g| Rc::ptr_eq(g, page));
        if is_own {
            let is_new = !has(&self.own);
            self.own = Some(Rc::clone(page));
            return is_new.then_some(0);
        }
        if self.beside.iter().any(has) {
            return None;
        }
        let place = self.count % BESIDE;
        self.count += 1;
        self.beside[place] = Some(Rc::clone(page));
        Some(1 + place as u32)
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
        let mut of = |group| pages.of(group, group).unwrap();
        let page = of((1, 7));
        assert!(Rc::ptr_eq(&page, &of((1, 7))));
        let others = [of((2, 7)), of((1, 8))];
        assert!(others.iter().all(|other| !Rc::ptr_eq(&page, other)));
        assert!(rustix::fs::ftruncate(&page, 0).is_err());
        drop((page, others));
        of((3, 7));
        assert_eq!(pages.0.len(), 1);
    }

    #[test]
    fn two_groups_have_a_page_that_no_third_one_has() {
        let mut pages = Pages::default();
        let groups = [(0, 7), (1, 7), (0, 8)];
        let mut of = |a: usize, b: usize| pages.of(groups[a], groups[b]).unwrap();
        let page = of(0, 1);
        assert!(Rc::ptr_eq(&page, &of(1, 0)));
        let others = [of(0, 0), of(1, 1), of(0, 2), of(1, 2)];
        assert!(others.iter().all(|other| !Rc::ptr_eq(&page, other)));
    }

    #[test]
    fn a_client_has_the_pages_of_the_last_groups() {
        let mut pages = Pages::default();
        let own = (0, 7);
        let mut given = Given::default();
        let mut give = |other: Group| {
            let page = pages.of(own, other).unwrap();
            given.add(&page, other == own)
        };
        assert_eq!([own, own].map(&mut give), [Some(0), None]);
        assert_eq!(
            [1, 2, 3, 2].map(|user| give((user, 7))),
            [Some(1), Some(2), Some(3), None]
        );
        assert_eq!(
            [4, 3, 1].map(|user| give((user, 7))),
            [Some(1), None, Some(2)]
        );
    }
}
