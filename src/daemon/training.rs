//! Whether an operator paused training. The catalog remembers it across restarts.

use crate::catalog::{Catalog, CatalogError};

/// Name of the value in the catalog: since when and by whom, or nothing.
const NAME: &str = "training paused";

/// An operator's decision that no weights are trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrainingPause {
    /// Name of the key, or `local`.
    pub by: String,
    /// Since when, milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
}

impl TrainingPause {
    /// The pause that is in effect, if there is one.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn of(catalog: &Catalog) -> Result<Option<Self>, CatalogError> {
        let text = catalog.operator_value(NAME)?.unwrap_or_default();
        let parse =
            |(since, by): (&str, &str)| Some(Self { by: by.to_owned(), since_unix_ms: since.parse().ok()? });
        Ok(text.split_once(' ').and_then(parse))
    }

    /// Records a pause, or its end.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub fn record(pause: Option<&Self>, catalog: &Catalog) -> Result<(), CatalogError> {
        let text = pause.map(|pause| format!("{} {}", pause.since_unix_ms, pause.by)).unwrap_or_default();
        catalog.set_operator_value(NAME, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_remembered_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = || Catalog::open(&folder.path().join("catalog.sqlite")).unwrap();
        assert_eq!(TrainingPause::of(&catalog()).unwrap(), None);
        let pause = TrainingPause { by: "ann of ops".to_owned(), since_unix_ms: 5 };
        TrainingPause::record(Some(&pause), &catalog()).unwrap();
        assert_eq!(TrainingPause::of(&catalog()).unwrap(), Some(pause));
        TrainingPause::record(None, &catalog()).unwrap();
        assert_eq!(TrainingPause::of(&catalog()).unwrap(), None);
    }
}
