//! What a daemon exports to Prometheus, read line by line.

/// A value of a scrape.
pub(super) struct Exported<'a> {
    pub name: &'a str,
    labels: &'a str,
    pub value: f64,
}

impl<'a> Exported<'a> {
    /// The value of a label, as it is written.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        self.labels.split_once(&format!("{name}=\""))?.1.split('"').next()
    }
}

/// All values of a scrape, in its order.
pub(super) fn values(scrape: &str) -> impl Iterator<Item = Exported<'_>> {
    scrape.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(Exported { name, labels, value: value.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_labels_and_comments_are_no_values() {
        let scrape = "# HELP gauge 1 while it is so, else 0.\ngauge 1\n\
                      sum{phase=\"gate\",le=\"+Inf\"} 0.25\nno value\n";
        let found: Vec<_> = values(scrape)
            .map(|found| (found.name, found.label("phase"), found.label("le"), found.value))
            .collect();
        assert_eq!(found, [("gauge", None, None, 1.0), ("sum", Some("gate"), Some("+Inf"), 0.25)]);
    }
}
