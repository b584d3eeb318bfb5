//! [`options!`]: the options of a model, declared once. The struct, its defaults and its
//! [`Shape`](super::needs::Shape) derive from the declaration, with what the options of all models have: widths of
//! feature rows, types of edges, walks and dropout.
//!
//! ```text
//! /// What it is the shape of.
//! Options {
//!     /// What it is.
//!     count: 10,                       // numbers that are at least 1, each with its default
//! }
//! /// What is dropped.
//! dropout: 0.1,
//! choices { /** What varies. */ updater: Updater = Updater::Gru, }
//! widths |options| check_heads(…),     // how counts must fit one another
//! needs |options| options.recent(…)    // what it wants of a batch
//! ```
//! The order of counts and of choices is the one in which checkpoints store them.

macro_rules! options {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$count_doc:meta])* $count:ident: $default:expr,)+ }
        $(#[$dropout_doc:meta])*
        dropout: $dropout:literal,
        $(choices { $($(#[$choice_doc:meta])* $choice:ident: $kind:ty = $chosen:expr,)+ })?
        $(widths |$options:ident| $widths:expr,)?
        needs |$needing:ident| $needs:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $($(#[$count_doc])* pub $count: usize,)+
            /// Width of a node's feature row; 0 means nodes have none.
            pub node_feature_dim: usize,
            /// Width of an edge's feature row; 0 means edges have none.
            pub edge_feature_dim: usize,
            /// Types of edges that are distinguished.
            pub edge_types: $crate::model::EdgeTypes,
            /// Walks by whose features a second network scores pairs, beside the link predictor.
            pub walks: Option<$crate::model::walk::WalkOptions>,
            /// Units of event time in a second, at least 1: encodings of time see seconds. 1 in a model without any.
            pub ticks_per_second: u32,
            $(#[$dropout_doc])*
            pub dropout: f32,
            $($($(#[$choice_doc])* pub $choice: $kind,)+)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($count: $default,)+
                    node_feature_dim: 0,
                    edge_feature_dim: 0,
                    edge_types: $crate::model::EdgeTypes::default(),
                    walks: None,
                    ticks_per_second: 1,
                    dropout: $dropout,
                    $($($choice: $chosen,)+)?
                }
            }
        }

        impl $name {
            /// What the model wants of a batch but for memory: of each seed the `fanout` most recent neighbors in each
            /// of `layers` layers.
            fn recent(&self, fanout: usize, layers: usize) -> $crate::model::Needs {
                let features = [self.node_feature_dim, self.edge_feature_dim];
                $crate::model::Needs::recent(fanout, layers, features, self.edge_types, self.embedding_dim)
            }

            /// What the model wants of a batch.
            #[must_use]
            pub fn needs(&self) -> $crate::model::Needs {
                let $needing = self;
                $needs
            }
        }

        impl $crate::model::needs::Shape for $name {
            fn counts(&self) -> Vec<(&'static str, usize)> {
                vec![$((stringify!($count), self.$count)),+]
            }

            $(fn choices(&self) -> Vec<(&'static str, usize)> {
                vec![$((stringify!($choice), self.$choice as usize)),+]
            })?

            $(fn check_widths(&self) -> Result<(), $crate::model::needs::OptionsError> {
                let $options = self;
                $widths
            })?
        }
    };
}
pub(super) use options;
