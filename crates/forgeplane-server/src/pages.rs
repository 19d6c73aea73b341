//! Keyset pages: a cursor is the id (or number) of the last item seen, so pages never shift under writes.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use forgeplane_core::ports;

use crate::api::Page;
use crate::error::ApiError;

/// Items in a page unless asked otherwise.
const DEFAULT_LIMIT: u32 = 50;
/// The most items in a page.
const MAX_LIMIT: u32 = 200;

/// The part of a list that was asked for.
pub(crate) struct Window<C> {
    /// The cursor of the last item seen.
    pub(crate) after: Option<C>,
    limit: usize,
}

/// Reads `?after=&limit=`.
pub(crate) fn window<C: FromStr>(after: Option<String>, limit: Option<u32>) -> Result<Window<C>, ApiError> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::field("limit", format!("`limit` is a number from 1 to {MAX_LIMIT}")));
    }
    let after = match after {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::field("after", "`after` is not a cursor of this list")
                .way_out("give the `next` of the page before")
        })?),
    };
    Ok(Window { after, limit: limit as usize })
}

impl<C: Display> Window<C> {
    /// What to ask the coordinator for: one more than shown, to know whether there is a next page.
    pub(crate) fn page(&self) -> ports::Page {
        ports::Page { after: self.after.as_ref().map(C::to_string), limit: self.fetch() }
    }

    /// How many items to ask for.
    pub(crate) const fn fetch(&self) -> usize {
        self.limit + 1
    }

    /// The page to answer with.
    pub(crate) fn cut<M, T: From<M>>(
        &self,
        mut found: Vec<M>,
        cursor: impl Fn(&M) -> String,
    ) -> Json<Page<T>> {
        let more = found.len() > self.limit;
        found.truncate(self.limit);
        let next = found.last().filter(|_| more).map(cursor);
        Json(Page { items: found.into_iter().map(T::from).collect(), next })
    }
}

/// A list that is always answered whole.
pub(crate) fn whole<M, T: From<M>>(found: Vec<M>) -> Json<Page<T>> {
    Json(Page { items: found.into_iter().map(T::from).collect(), next: None })
}
