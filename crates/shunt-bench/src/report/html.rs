//! One page with tables and plots.

use super::Results;

/// The page.
pub(crate) fn page(results: &Results) -> String {
    format!("<pre>{}</pre>", super::table::text(results))
}
