//! The places of a message that a mapping reads, as a tree: one walk over the bytes finds them all.

/// Deepest pointer.
const DEPTH_MAX: usize = 32;

/// A tree of places. A place is known by its number; a root is a document.
#[derive(Debug, Default)]
pub(super) struct Plan {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    /// What it is called in the place above it, or what a root is called for people.
    name: Box<str>,
    /// The same as a place in an array.
    index: Option<usize>,
    parent: Option<usize>,
    children: Vec<usize>,
    /// An array of numbers is taken here.
    takes_row: bool,
    /// Each element of an array is a document here.
    is_each: bool,
}

impl Plan {
    /// A further document, called `name` in errors.
    pub fn root(&mut self, name: &str) -> usize {
        self.push(name, None)
    }

    fn push(&mut self, name: &str, parent: Option<usize>) -> usize {
        // RFC 6901 has no leading zeros in places of arrays.
        let is_number = name == "0" || !name.starts_with('0') && !name.starts_with('+');
        let index = if is_number { name.parse().ok() } else { None };
        self.nodes.push(Node {
            name: name.into(),
            index,
            parent,
            children: Vec::new(),
            takes_row: false,
            is_each: false,
        });
        self.nodes.len() - 1
    }

    /// The place that an RFC 6901 pointer names below `root`.
    ///
    /// # Errors
    /// When it is no pointer, or too deep.
    pub fn add(&mut self, root: usize, pointer: &str) -> Result<usize, String> {
        let Some(path) = pointer.strip_prefix('/') else {
            return if pointer.is_empty() {
                Ok(root)
            } else {
                Err(format!("the pointer {pointer:?} does not begin with /"))
            };
        };
        if path.split('/').count() > DEPTH_MAX {
            return Err(format!("the pointer has more than {DEPTH_MAX} parts"));
        }
        let mut node = root;
        for part in path.split('/') {
            let name = unescape(part).ok_or_else(|| {
                format!("in the pointer {pointer:?}, ~ must be written ~0, and / in a name ~1")
            })?;
            node = match self.child(node, &name) {
                Some(child) => child,
                None => {
                    let child = self.push(&name, Some(node));
                    if let Some(parent) = self.nodes.get_mut(node) {
                        parent.children.push(child);
                    }
                    child
                }
            };
        }
        Ok(node)
    }

    /// Takes arrays of numbers at a place.
    pub fn take_row(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.takes_row = true;
        }
    }

    /// Makes every element of the array at a place a document.
    pub fn take_each(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.is_each = true;
        }
    }

    /// A place below which something is read although it is taken as a whole, if there is one.
    pub fn conflict(&self) -> Option<String> {
        let both = |node: &Node| {
            (node.takes_row || node.is_each) && !node.children.is_empty() || node.takes_row && node.is_each
        };
        self.nodes.iter().position(both).map(|node| self.path(node))
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn takes_row(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.takes_row)
    }

    pub fn is_each(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.is_each)
    }

    pub fn is_leaf(&self, node: usize) -> bool {
        self.nodes.get(node).is_none_or(|node| node.children.is_empty())
    }

    /// Whether nothing is read below the places directly below `node`.
    pub fn is_flat(&self, node: usize) -> bool {
        self.nodes.get(node).is_none_or(|node| node.children.iter().all(|&child| self.is_leaf(child)))
    }

    /// What the places directly below `node` are called.
    pub fn names(&self, node: usize) -> impl Iterator<Item = &str> {
        let children = self.nodes.get(node).map_or(&[][..], |node| &node.children);
        children.iter().map(|&child| self.name(child))
    }

    pub fn parent(&self, node: usize) -> Option<usize> {
        self.nodes.get(node)?.parent
    }

    pub fn name(&self, node: usize) -> &str {
        self.nodes.get(node).map_or("", |node| &node.name)
    }

    /// The place called `name` directly below `node`.
    pub fn child(&self, node: usize, name: &str) -> Option<usize> {
        self.find(node, |child| &*child.name == name)
    }

    /// The place of an array's element directly below `node`.
    pub fn element(&self, node: usize, index: usize) -> Option<usize> {
        self.find(node, |child| child.index == Some(index))
    }

    fn find(&self, node: usize, is_it: impl Fn(&Node) -> bool) -> Option<usize> {
        let children = &self.nodes.get(node)?.children;
        children.iter().copied().find(|&child| self.nodes.get(child).is_some_and(&is_it))
    }

    /// The pointer of a place, or what its document is called.
    pub fn path(&self, node: usize) -> String {
        let mut parts = Vec::new();
        let mut at = node;
        while let Some(parent) = self.parent(at) {
            parts.push(self.name(at).replace('~', "~0").replace('/', "~1"));
            at = parent;
        }
        if parts.is_empty() {
            return self.name(at).to_owned();
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}

/// A part of a pointer as the name that it stands for.
fn unescape(part: &str) -> Option<String> {
    let mut name = String::with_capacity(part.len());
    let mut rest = part.chars();
    while let Some(next) = rest.next() {
        name.push(match next {
            '~' => match rest.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_those_of_rfc_6901() {
        let mut plan = Plan::default();
        let root = plan.root("the value");
        for pointer in
            ["/foo", "/foo/0", "/", "/a~1b", "/c%d", "/e^f", "/g|h", "/i\\j", "/k\"l", "/ ", "/m~0n"]
        {
            let node = plan.add(root, pointer).unwrap();
            assert_eq!(plan.path(node), pointer);
            assert_eq!(plan.add(root, pointer), Ok(node), "one place has one number");
        }
        assert_eq!(plan.add(root, ""), Ok(root));
        assert!(plan.child(root, "a/b").is_some() && plan.child(root, "m~n").is_some());
        let foo = plan.child(root, "foo").unwrap();
        assert!(plan.element(foo, 0).is_some() && plan.element(foo, 1).is_none());
        for bad in ["foo", "/a~", "/a~2", &"/x".repeat(33)] {
            assert!(plan.add(root, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_place_in_an_array_has_no_leading_zero() {
        let mut plan = Plan::default();
        let root = plan.root("the value");
        plan.add(root, "/01").unwrap();
        assert_eq!(plan.element(root, 1), None);
    }
}
