//! The proxy, in front of a scripted server on raw TCP.

mod admin;
mod attempts;
mod balance;
mod bytes;
mod check;
mod drain;
mod ends;
mod faults;
mod hops;
mod identity;
mod limits;
mod reload;
mod restart;
mod secure;
mod slow;
mod tls;
mod way_back;
mod wrong;
