//! The embedded store on media that crash, fill up, rot and wear out.

mod corrupt;
mod crash;
mod deletions;
mod full;
mod history;
mod medium;
mod random;
mod selections;
mod wear;
