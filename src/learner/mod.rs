//! Placeholder for `learner`.
