//! The house of these tests, with the worker's own sandbox helper.

use forgeplane_core::rules::Settings;
use forgeplane_testkit::house::settings;

pub use forgeplane_testkit::house::*;

pub async fn house() -> House {
    house_with(settings()).await
}

pub async fn house_with(settings: Settings) -> House {
    House::new(settings, Some(env!("CARGO_BIN_EXE_forgeplane-sandbox").into())).await
}
