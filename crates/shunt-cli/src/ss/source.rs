//! Where lists come from: the daemons that serve this user, from one look to the next.

use anyhow::{Result, bail};

use super::List;
use super::connection;
use super::expression::Item;
use crate::control::{Control, Details};

/// The host's daemon and the user's own, as far as they have answered. Whoever looks again and again stays connected.
#[derive(Debug, Default)]
pub(crate) struct Source([Option<Control>; 2]);

impl Source {
    /// What every daemon that serves this user knows, and `shows` wants.
    pub(crate) fn collect(&mut self, shows: impl Fn(Item<'_>) -> bool) -> Result<List> {
        let mut list = List {
            connections: Vec::new(),
            listeners: Vec::new(),
        };
        for rows in self.details()? {
            let connections = rows.connections.iter();
            let connections =
                connections.map(|(row, detail)| connection::connection(row, detail.as_ref()));
            list.connections.extend(connections);
            let listeners = rows.listeners.iter().map(connection::listener);
            list.listeners.extend(listeners);
        }
        list.connections.retain(|c| shows(Item::Connection(c)));
        list.connections.sort_by_key(|c| (c.local, c.peer));
        list.listeners.retain(|l| shows(Item::Listener(l)));
        list.listeners.sort_by_key(|l| (l.local, l.pid));
        Ok(list)
    }

    fn details(&mut self) -> Result<Vec<Details>> {
        let mut found = Vec::new();
        for (host, place) in [true, false].into_iter().zip(&mut self.0) {
            // One that ended since the last look may have a successor.
            let known = place.take().filter(|daemon| !daemon.is_stopped());
            let known = known.and_then(|daemon| Some((daemon.list_details().ok()?, daemon)));
            let known = match known {
                Some(known) => Some(known),
                None => asked_anew(host)?,
            };
            if let Some((details, daemon)) = known {
                found.push(details);
                *place = Some(daemon);
            }
        }
        match (found.is_empty(), Control::named()) {
            (false, _) => Ok(found),
            (true, Some(path)) => bail!(
                "no shuntd answers at {}, which SHUNT_SOCKET names, so nothing runs under Shunt here",
                path.display()
            ),
            (true, None) => bail!(
                "no shuntd answers, so nothing runs under Shunt here: `shunt run -- CMD` starts one"
            ),
        }
    }
}

/// Asks a daemon that has not been asked yet; `None`: there is none.
fn asked_anew(host: bool) -> Result<Option<(Details, Control)>> {
    let Some(daemon) = Control::connect(host) else {
        return Ok(None);
    };
    daemon.greet("shunt-ss")?;
    Ok(Some((daemon.list_details()?, daemon)))
}
