//! The proxy, in front of a scripted server on raw TCP.

mod attempts;
mod balance;
mod bytes;
mod check;
mod drain;
mod ends;
mod hops;
mod identity;
mod limits;
mod reload;
mod restart;
mod secure;
mod wrong;
