//! The default file as a list: every section and key in its order, with the words that stand above it.

use super::DEFAULT_FILE;

/// A section or a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its dotted name.
    pub path: String,
    /// The comment above it; keys of one paragraph share the one above them.
    pub words: String,
    /// Whether it is a section.
    pub is_section: bool,
}

/// Every section and key of the default file.
pub(super) fn entries() -> Vec<Entry> {
    read(DEFAULT_FILE)
}

fn read(text: &str) -> Vec<Entry> {
    let (mut section, mut words, mut entries) = (String::new(), Vec::new(), Vec::new());
    let mut is_spent = false;
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix('#') {
            if std::mem::take(&mut is_spent) {
                words.clear();
            }
            words.push(comment.strip_prefix(' ').unwrap_or(comment));
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
            entries.push(Entry { path: section.clone(), words: words.join("\n"), is_section: true });
            words.clear();
        } else if let Some((key, _)) = line.split_once(" = ") {
            let path = format!("{section}.{key}");
            entries.push(Entry { path, words: words.join("\n"), is_section: false });
            is_spent = true;
        } else {
            words.clear();
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_belong_to_what_is_below_them() {
        let text =
            "# Head.\n\n# Of a.\n[a]\n# One,\n# two.\nx = 1\ny = 2\n# Three.\nz = \"[b]\"\n\n[a.b]\nx = 1\n";
        let entries: Vec<_> = read(text).into_iter().map(|e| (e.path, e.words, e.is_section)).collect();
        let entries: Vec<_> =
            entries.iter().map(|(path, words, section)| (&**path, &**words, *section)).collect();
        assert_eq!(
            entries,
            [
                ("a", "Of a.", true),
                ("a.x", "One,\ntwo.", false),
                ("a.y", "One,\ntwo.", false),
                ("a.z", "Three.", false),
                ("a.b", "", true),
                ("a.b.x", "", false),
            ]
        );
    }
}
