//! [`kernels!`]: a kernel declared once. Its [`Entry`](super::texts::Entry) and its launcher derive from the
//! declaration.
//!
//! ```text
//! /// What it computes.
//! pub fn launcher = kernel(argument: Type, …) {
//!     let operation = "what errors call it";
//!     let count = …;                            // sizes, as statements
//!     check("what", has, needs), …;             // what is not the length of a buffer, if anything
//!     pass read(x, count, "terms"), u64(count), write(out, count, "sums");
//!     then part.check(operation)?;              // checks after those of lengths, if any
//!     choose index;                             // which one of several kernels
//!     grid count, 256;                          // threads in all, and of a block
//!     skip count == 0;                          // when there is nothing to do, if not where there are no threads
//!     text "{count} values";                    // the sizes, for errors, if not the threads
//!     safe "why the kernel stays within its buffers";
//! }
//! ```
//!
//! `pass` lists the kernel's parameters in its order. `read` and `write` name a buffer, the values that it needs and
//! what errors call it; `read_at` and `write_at` also name the first value to pass; `rows` and `rows_mut` pass rows
//! by their layout; `optional` may be `None`. `u64`, `u32`, `f32`, `flag` and `bits` are numbers, `value` is a struct
//! of numbers, and `built` one of addresses, which come from the [`Launch`](super::launch::Launch). `mapped` is an
//! address in the arena, launched while its slice is held. The launcher checks all lengths before anything happens, and
//! does not wait.
//!
//! Kernels that differ only in sizes that the compiler has to know share a declaration, `one | other | …`; `choose` is
//! the place in that list. A third number after `grid` is the blocks of a multiprocessor at most. A launcher whose
//! arguments somebody has to prepare is not `pub`; what is then safe is the function of its file that calls it.

/// Declares kernels of one file; see the top of this file.
macro_rules! kernels {
    ($(
        $(#[$doc:meta])*
        $visibility:vis fn $launcher:ident = $($kernel:ident)|+ ($($argument:tt: $type:ty),+ $(,)?) {
            let $operation:ident = $named:expr;
            $(let $variable:pat_param = $value:expr;)*
            $(check $(($what:expr, $has:expr, $needs:expr)),+;)?
            pass $($kind:ident($($given:tt)+)),+;
            $(then $then:expr;)*
            $(choose $choice:expr;)?
            grid $work:expr, $threads:expr $(, $blocks:expr)?;
            $(skip $empty:expr;)?
            $(text $($text:expr),+;)?
            safe $reason:literal;
        }
    )*) => {
        pub(in crate::device::cuda) const ENTRIES: &[$crate::device::cuda::texts::Entry] = &[
            $($crate::device::cuda::texts::Entry {
                names: &[$(stringify!($kernel)),+],
                parameters: &[$($crate::device::cuda::declare::parameter!(bytes $kind $($given)+)),+],
            }),*
        ];
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// Sizes that do not fit, a buffer that is too short or of another stream, or the driver's.
            ///
            /// # Soundness
            #[doc = $reason]
            #[allow(unsafe_code)]
            $visibility fn $launcher(
                (cuda, stream): $crate::device::cuda::launch::StreamContext<'_>,
                $($argument: $type),+
            ) -> Result<(), $crate::device::cuda::error::CudaError> {
                let $operation = $named;
                $(let $variable = $value;)*
                $crate::device::cuda::launch::check_len($operation, &[
                    $($(($what, $has, $needs),)+)?
                    $($crate::device::cuda::declare::parameter!(needs $operation, $kind $($given)+)),+
                ])?;
                $($then;)*
                let work = ($work) as u64;
                if None$(.or(Some($empty)))?.unwrap_or(work == 0) {
                    return Ok(());
                }
                let name = [$(stringify!($kernel)),+][0 $(+ $choice)?];
                let launch = $crate::device::cuda::launch::Launch::new(cuda, stream, $operation);
                $(let launch =
                    $crate::device::cuda::declare::parameter!(pass $operation, launch, $kind $($given)+);)+
                let blocks = None$(.or(Some($blocks)))?;
                let grid = $crate::device::cuda::launch::Grid::filling(cuda, work, $threads, blocks);
                let text = || None$(.or(Some(format!($($text),+))))?.unwrap_or_else(|| format!("{work} values"));
                // SAFETY: every buffer has the values that the declaration requires, and the declaration states
                // why the kernel goes no further.
                unsafe { launch.run(name, grid, text) }
            }
        )*
    };
}
pub(super) use kernels;

/// A parameter of a declaration: its bytes; what it is called, its length and the length needed; how it is passed.
macro_rules! parameter {
    (bytes u64 $($given:tt)+) => {
        size_of::<u64>()
    };
    (bytes u32 $($given:tt)+) => {
        size_of::<u32>()
    };
    (bytes f32 $($given:tt)+) => {
        size_of::<f32>()
    };
    (bytes bits $($given:tt)+) => {
        size_of::<u32>()
    };
    (bytes flag $($given:tt)+) => {
        size_of::<u32>()
    };
    (bytes value $type:ty, $value:expr) => {
        size_of::<$type>()
    };
    (bytes built $type:ty, $($given:tt)+) => {
        size_of::<$type>()
    };
    (bytes $address:ident $($given:tt)+) => {
        size_of::<$crate::device::cuda::twins::Address>()
    };

    (needs $operation:ident, read $buffer:expr, $needs:expr, $what:literal) => {
        ($what, $buffer.len(), $needs)
    };
    (needs $operation:ident, write $buffer:expr, $needs:expr, $what:literal) => {
        ($what, $buffer.len(), $needs)
    };
    (needs $operation:ident, read_at $buffer:expr, $first:expr, $needs:expr, $what:literal) => {
        ($what, $buffer.len(), $needs)
    };
    (needs $operation:ident, write_at $buffer:expr, $first:expr, $needs:expr, $what:literal) => {
        ($what, $buffer.len(), $needs)
    };
    (needs $operation:ident, optional $buffer:expr, $needs:expr, $what:literal) => {
        ($what, $buffer.map_or($needs, $crate::device::cuda::memory::CudaBuffer::len), $needs)
    };
    (needs $operation:ident, rows $buffer:expr, $layout:expr, $sizes:expr, $what:literal) => {
        ($what, $buffer.len(), $layout.end($operation, $what, $sizes)?)
    };
    (needs $operation:ident, rows_mut $buffer:expr, $layout:expr, $sizes:expr, $what:literal) => {
        ($what, $buffer.len(), $layout.end_apart($operation, $what, $sizes)?)
    };
    (needs $operation:ident, $number:ident $($given:tt)+) => {
        ("", 0, 0)
    };

    (pass $operation:ident, $launch:ident, read $buffer:expr, $($given:tt)+) => {
        $launch.reads($buffer)
    };
    (pass $operation:ident, $launch:ident, write $buffer:expr, $($given:tt)+) => {
        $launch.writes($buffer)
    };
    (pass $operation:ident, $launch:ident, read_at $buffer:expr, $first:expr, $($given:tt)+) => {
        $launch.reads_from($buffer, $first)
    };
    (pass $operation:ident, $launch:ident, write_at $buffer:expr, $first:expr, $($given:tt)+) => {
        $launch.writes_from($buffer, $first)
    };
    (pass $operation:ident, $launch:ident, optional $buffer:expr, $($given:tt)+) => {
        $launch.reads_optional($buffer)
    };
    (pass $operation:ident, $launch:ident, rows $buffer:expr, $layout:expr, $($given:tt)+) => {
        $launch.reads_from($buffer, $layout.first)
    };
    (pass $operation:ident, $launch:ident, rows_mut $buffer:expr, $layout:expr, $($given:tt)+) => {
        $launch.writes_from($buffer, $layout.first)
    };
    (pass $operation:ident, $launch:ident, mapped $address:expr) => {
        $launch.mapped($address)
    };
    (pass $operation:ident, $launch:ident, u64 $number:expr) => {
        $launch.number($number as u64)
    };
    (pass $operation:ident, $launch:ident, u32 $number:expr, $what:literal) => {
        $launch.number($crate::device::cuda::launch::to_u32($operation, $what, $number)?)
    };
    (pass $operation:ident, $launch:ident, f32 $number:expr) => {
        $launch.number::<f32>($number)
    };
    (pass $operation:ident, $launch:ident, bits $bits:expr) => {
        $launch.number::<u32>($bits)
    };
    (pass $operation:ident, $launch:ident, flag $flag:expr) => {
        $launch.number(u32::from($flag))
    };
    (pass $operation:ident, $launch:ident, value $type:ty, $value:expr) => {
        $launch.number::<$type>($value)
    };
    (pass $operation:ident, $launch:ident, built $type:ty, |$building:ident| $value:expr) => {{
        let mut $building = $launch;
        let value: $type = $value;
        $building.number(value)
    }};
}
pub(super) use parameter;
