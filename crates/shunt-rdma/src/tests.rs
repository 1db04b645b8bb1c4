//! The protocol over an emulated NIC that behaves badly, against streams as they should arrive.

mod counted;
mod ends;
mod failure;
mod hostile;
mod meeting;
mod ready;
mod sleep;
mod store;
mod stream;
