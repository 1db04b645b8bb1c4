//! `shunt downgrade`: tells the holders of a connection's ends that it is to go back to
//! TCP. Only who may see its ends may wish that.

use std::net::{IpAddr, SocketAddr};

use shunt_abi::message::{Kind, Message};

use super::Daemon;
use super::dispatch::Malformed;
use crate::end::EndId;
use crate::tuple::FAMILIES;

impl Daemon {
    /// A client wishes it of the connection between two addresses.
    pub(super) fn downgrade(&mut self, asker: u64, wish: &Message) -> Result<(), Malformed> {
        let (Some(client), Some(viewer)) = (self.clients.get(&asker), self.viewer(asker)) else {
            return Ok(());
        };
        if client.has_unsent() {
            return Err(Malformed); // It has not read its last answer yet.
        }
        let between = addresses(wish).ok_or(Malformed)?;
        let may_see = |id: &EndId| {
            let holder = self.clients.get(&id.client);
            holder.is_some_and(|holder| viewer.may_see(holder.uid, holder.netns))
        };
        let named = self.ends.between(between).into_iter().filter(may_see);
        let number = |id: EndId| Some((id, self.ends.get(id)?.fd));
        let named: Vec<(EndId, i32)> = named.filter_map(number).collect();
        let mut answer = Message::new(Kind::End);
        answer.index = named.len() as u32;
        for (id, fd) in named {
            // Once is enough: who does not read its mail must not drown in it.
            let end = self.ends.get_mut(id).filter(|end| !end.told);
            if let Some(end) = end {
                end.told = true;
                let mut message = Message::new(Kind::Downgrade);
                (message.cookie, message.fd) = (id.cookie, fd);
                self.post(id.client, message, None);
            }
        }
        self.post(asker, answer, None);
        Ok(())
    }
}

/// The two ends that a message names, as tuples have them.
fn addresses(message: &Message) -> Option<[(IpAddr, u16); 2]> {
    let address = |i: usize| {
        let bytes = message.addresses[i];
        let ip = match message.family {
            family if family == FAMILIES.0 => {
                IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            family if family == FAMILIES.1 => IpAddr::from(bytes),
            _ => return None,
        };
        let address = SocketAddr::new(ip.to_canonical(), message.ports[i]);
        Some((address.ip(), address.port()))
    };
    Some([address(0)?, address(1)?])
}
