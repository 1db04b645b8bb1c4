//! What a NIC has brought from another host: whoever takes it tells this process's sleepers, as a peer on the same host would.

use std::sync::atomic::Ordering;

use shunt_rdma::link::News;
use shunt_shm::atomic::{full, light};
use shunt_shm::slot;

use super::tell::call_once;
use crate::control;
use crate::link::Link;

/// Tells this process's sleepers what has happened on a slot of a link to another host. It can be
/// seen in the view of the peer's arena. Takes no token.
pub(crate) fn hear_news(link: u32, number: u32, news: News) {
    let Some(link) = Link::between_hosts(link) else {
        return;
    };
    if news == News::Recalled {
        // The next call that waits, on any connection, does it.
        control::wish_again();
    }
    let (for_readers, for_writers) = match news {
        News::Data | News::Ended => (true, false),
        News::Room => (false, true),
        News::Recalled => (true, true),
        News::Ready | News::Agreed | News::Switched => return,
    };
    let (own, view) = (link.own().slot(number), link.peer().slot(number));
    light();
    let wait = own.face.look_again(own.face.wait.load(Ordering::Relaxed));
    if wait & slot::WATCHED != 0 && (for_readers || wait & slot::WANT_TX != 0) {
        let group = wait >> slot::GROUP_SHIFT & 0x3f;
        link.peer().log(group).append(number);
        // Pairs with the sleeper's, between its place at the door and its look at the log.
        full();
        let door = link.own().door(group);
        if door.sleepers.load(Ordering::Relaxed) != 0 {
            let epoch = door.epoch.load(Ordering::Acquire);
            call_once(&link.peer().tail(group).called, epoch, &door.address);
        }
    }
    let epoch = own.face.epoch.load(Ordering::Acquire);
    if for_readers && wait & slot::WAIT_RX != 0 {
        call_once(&view.sending.called, epoch, &own.face.data);
    }
    if for_writers && wait & slot::WAIT_TX != 0 {
        call_once(&view.sending.called_for_room, epoch, &own.face.room);
    }
}
