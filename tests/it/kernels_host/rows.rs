//! Gather and scatter of rows: every byte of every row, written once, and no other byte.

use evergraph::device::rng;

use super::{Arrays, run};

#[derive(Clone, Copy, Debug)]
struct Case {
    scatter: bool,
    wide: bool,
    width: u64,
    from_stride: u64,
    to_stride: u64,
    /// Rows of the table.
    rows: u64,
    /// Rows to copy.
    count: u64,
    /// Where the first row stands behind a multiple of 128.
    from_offset: u64,
    to_offset: u64,
    /// Blocks of 64 threads.
    grid: u64,
    seed: u64,
}

impl Case {
    fn draw(&self, word: u64, i: u64, n: u64) -> u64 {
        u64::from(rng::below([self.seed, self.width, word, i], u32::try_from(n).unwrap()))
    }

    /// Row numbers: some twice for a gather, all different for a scatter; some "no row", some that do not exist.
    fn list(&self) -> Vec<u64> {
        let mut free: Vec<u64> = (0..self.rows).collect();
        let none = if self.wide { u64::MAX } else { u64::from(u32::MAX) };
        let row = |i| match self.draw(0, i, 12) {
            0 => none,
            1 => self.rows + self.draw(1, i, 3),
            2 if self.wide => (1 << 33) + i,
            _ if !self.scatter => self.draw(2, i, self.rows),
            _ if free.is_empty() => none,
            _ => free.swap_remove(self.draw(3, i, free.len() as u64) as usize),
        };
        (0..self.count).map(row).collect()
    }

    fn side(&self, word: u64, rows: u64, stride: u64) -> Vec<u8> {
        let bytes = if rows == 0 { 0 } else { (rows - 1) * stride + self.width };
        (0..bytes).map(|i| self.draw(word, i, 256) as u8).collect()
    }

    fn job(&self, from: &[u8], to: &[u8], list: &[u64]) -> Arrays {
        let numbers = [
            u64::from(self.scatter),
            u64::from(self.wide),
            self.width,
            self.from_stride,
            self.to_stride,
            self.rows,
            self.count,
            self.from_offset,
            self.to_offset,
            self.grid,
            self.seed,
        ];
        let narrow: Vec<u32> = list.iter().map(|&row| row as u32).collect();
        let mut job = Arrays::default();
        job.push(&numbers).push(from).push(to);
        if self.wide {
            job.push(list);
        } else {
            job.push(&narrow);
        }
        job
    }

    fn check(&self) -> (u32, u32) {
        self.check_list(&self.list())
    }

    fn check_list(&self, list: &[u64]) -> (u32, u32) {
        let (from_rows, to_rows) =
            if self.scatter { (self.count, self.rows) } else { (self.rows, self.count) };
        let from = self.side(4, from_rows, self.from_stride);
        let to = self.side(5, to_rows, self.to_stride);
        let mut output = run("rows", &self.job(&from, &to, list));
        let counts: Vec<u32> = output.take();
        let (found, stores): (Vec<u8>, Vec<u8>) = (output.take(), output.take());
        assert!(output.is_empty());

        let (mut expected, mut written) = (to.clone(), vec![0_u8; to.len()]);
        let none = if self.wide { u64::MAX } else { u64::from(u32::MAX) };
        let mut errors = 0;
        for (i, &row) in list.iter().enumerate() {
            let (source, target) = if self.scatter { (i as u64, row) } else { (row, i as u64) };
            let width = self.width as usize;
            errors += u32::from(row >= self.rows && row != none);
            let exists = row < self.rows && row != none;
            if !exists && self.scatter {
                continue;
            }
            let target = (target * self.to_stride) as usize;
            written[target..target + width].fill(1);
            if exists {
                let source = (source * self.from_stride) as usize;
                expected[target..target + width].copy_from_slice(&from[source..source + width]);
            } else {
                expected[target..target + width].fill(0);
            }
        }
        assert!(found == expected, "wrong bytes: {self:?}");
        assert!(stores == written, "bytes not written once: {self:?}");
        assert_eq!(counts[0], errors, "{self:?}");
        (counts[1], counts[2])
    }
}

#[test]
fn every_byte_of_a_row_is_copied_once_at_every_width_and_alignment() {
    let mut vectors = std::collections::BTreeSet::new();
    let widths =
        [1, 2, 3, 4, 7, 8, 12, 16, 20, 32, 33, 64, 100, 127, 128, 129, 132, 136, 144, 172, 256, 344, 400];
    let widths = widths.into_iter().chain([512, 516, 688, 700, 768, 1_376, 2_049, 4_096, 4_100]);
    for (seed, width) in (0_u64..).zip(widths) {
        for (form, &(from_pad, to_pad, from_offset, to_offset)) in
            [(0, 0, 0, 0), (16, 0, 16, 32), (4, 0, 4, 60), (0, 12, 124, 0), (8, 24, 72, 8), (3, 5, 1, 127)]
                .iter()
                .enumerate()
        {
            let draw = |word, n| u64::from(rng::below([seed, form as u64, word, 0], n));
            let case = Case {
                scatter: draw(0, 2) == 1,
                wide: draw(1, 2) == 1,
                width,
                from_stride: width + from_pad,
                to_stride: width + to_pad,
                rows: 1 + draw(2, 40),
                count: draw(3, 50),
                from_offset,
                to_offset,
                grid: 1 + draw(4, 4),
                seed: seed * 8 + form as u64,
            };
            vectors.insert(case.check());
        }
    }
    for vector in [1, 4, 8, 16] {
        assert!(vectors.contains(&(vector, 5)), "whole warps at {vector} bytes: {vectors:?}");
        assert!(vectors.iter().any(|&(v, lanes)| v == vector && lanes < 5), "parts of warps: {vectors:?}");
    }
}

#[test]
fn both_directions_agree_at_the_widths_of_features_and_memory() {
    for scatter in [false, true] {
        for (width, stride) in [(400, 400), (688, 688), (688, 768), (344, 384), (64, 64)] {
            let case = Case {
                scatter,
                wide: scatter,
                width,
                from_stride: if scatter { width } else { stride },
                to_stride: if scatter { stride } else { width },
                rows: 70,
                count: 90,
                from_offset: 0,
                to_offset: 0,
                grid: 2,
                seed: width + stride,
            };
            let (vector, _) = case.check();
            assert_eq!(vector, if width == 344 { 8 } else { 16 });
        }
    }
}

/// One row that stands for all of a table.
#[test]
fn rows_of_a_table_are_counted_in_64_bits() {
    const END: u64 = 1 << 32;
    let lists =
        [(false, [0, END - 3, END - 2, END - 1, 5]), (true, [END - 1, END, END + 1, 2 * END, u64::MAX])];
    for (wide, list) in lists {
        for rows in [END - 2, END - 1, END, END + 1, 2 * END] {
            let (width, count) = (16, list.len() as u64);
            let (from_stride, to_stride, from_offset, to_offset) = (0, width, 0, 0);
            let case = Case {
                scatter: false,
                wide,
                width,
                from_stride,
                to_stride,
                rows,
                count,
                from_offset,
                to_offset,
                grid: 1,
                seed: rows,
            };
            case.check_list(&list);
        }
    }
}

#[test]
fn a_long_row_is_walked_from_a_line_on_by_as_few_lanes_as_take_one_step() {
    let draw = |word, i, n| u64::from(rng::below([9, word, i, 0], n));
    let addresses: Vec<u64> = (0..4_000).map(|i| (1 << 40) + (draw(0, i, 1_000) << draw(1, i, 5))).collect();
    let widths: Vec<u64> = (0..4_000).map(|i| (1 + draw(2, i, 300)) << draw(3, i, 5)).collect();
    let mut job = Arrays::default();
    job.push::<u64>(&[]).push(&addresses).push(&widths);
    let outputs: Vec<u32> = run("rows", &job).take();
    for ((address, width), output) in addresses.iter().zip(&widths).zip(outputs.chunks_exact(3)) {
        let (vector, lanes, shift) = (u64::from(output[0]), 1 << output[1], u64::from(output[2]));
        let fits = |v: &u64| address % v == 0 && width % v == 0;
        assert_eq!(Some(vector), [16, 8, 4, 1].into_iter().find(fits), "{width} bytes at {address}");
        let begin = address - shift * vector;
        let (aligned, near) = (begin % 128 == 0, address - begin < 128);
        assert!(
            if *width > 128 { aligned && near } else { shift == 0 },
            "{width} bytes at {address}: {shift}"
        );
        // However a row lies, and no more lanes than a warp has.
        let span = if *width > 128 { width + 128 - vector } else { *width };
        let (enough, fewer) = (lanes * vector >= span, lanes / 2 * vector >= span);
        assert!(lanes <= 32 && (enough || lanes == 32) && (lanes == 1 || !fewer), "{width} bytes: {lanes}");
    }
}
