//! A run's life, told over the real coordinator with memory adapters; every loop is stepped by hand.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod approval;
mod evidence;
mod promotion;
mod requeue;
mod secrets;
