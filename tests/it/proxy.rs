//! The proxy, in front of a scripted server on raw TCP.

mod admin;
mod ahead;
mod attempts;
mod balance;
mod bytes;
mod check;
mod drain;
mod ended;
mod ends;
mod faults;
mod framing;
mod health;
mod hops;
mod http2;
mod identity;
mod limits;
mod live;
mod process;
mod readiness;
mod reload;
mod restart;
mod secure;
mod slow;
mod tls;
mod way_back;
mod wrong;
