//! Values side by side.

use super::rows_of;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{Layout, join_rows};
use crate::nn::Tensor;

/// Values that one launch joins.
const PARTS: usize = 4;

/// The rows of `parts` side by side.
pub fn concat(work: &CudaWork, y: &mut Tensor, parts: &[&Tensor]) {
    let (rows, cols) = y.shape();
    let mut first = 0;
    for parts in parts.chunks(PARTS) {
        let layout = Layout::dense(cols).at(first);
        work.run(|context| {
            let parts = parts.iter().map(|part| rows_of(part, None)).collect::<Result<Vec<_>, _>>()?;
            join_rows(context, &parts, rows, (y.on_gpu_mut()?, layout))
        });
        first += parts.iter().map(|part| part.cols()).sum::<usize>();
    }
}
