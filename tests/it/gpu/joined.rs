//! Rows joined and spread on a GPU, and what is done to them value by value: bit for bit, but for sums.

use evergraph::device::cuda::CudaWork;
use evergraph::device::cuda::layers::{
    Layout, Part, Put, add_rows, drop_out, follow_list, join_rows, relu_backward, scatter_add_rows,
};
use evergraph::device::cuda::twins::Mask;
use evergraph::nn::InverseIndex;

use super::layers::{On, agree, wide};
use super::{Draws, gpu};
use crate::kernels_host::nn::Inputs;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_list_is_read_by_way_of_another_on_a_gpu() {
    let cuda = gpu();
    let (on, mut draws) = (On(&cuda), Draws::new(8));
    for (count, entries) in [(1, 1), (700, 90), (3_000, 1), (40, 0)] {
        let list: Vec<u32> = (0..entries).map(|i| 7 * i + 3).collect();
        let at: Vec<u32> = (0..count)
            .map(|_| match draws.below(9) {
                0 => u32::MAX,
                1 => entries,
                place => place as u32 % entries.max(1),
            })
            .collect();
        // One more than is written.
        let mut out = on.copy(&vec![5_u32; count + 1]);
        follow_list(on.context(), &on.copy(&at), count, &on.copy(&list), &mut out).unwrap();
        let mut expected: Vec<u32> =
            at.iter().map(|&place| list.get(place as usize).copied().unwrap_or(u32::MAX)).collect();
        expected.push(5);
        assert_eq!(out.copy_to_host().unwrap(), expected, "{count} by way of {entries}");
        let error = follow_list(on.context(), &on.copy(&at), count + 1, &on.copy(&list), &mut out);
        assert!(error.unwrap_err().to_string().contains("places"));
    }
}

#[test]
fn rows_of_several_tables_are_joined_on_a_gpu() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(1);
    for (count, widths) in [(1, [1, 0, 0, 0]), (70, [33, 100, 0, 5]), (9, [100, 172, 40, 1])] {
        let tables: Vec<Vec<f32>> = widths.iter().map(|width| draws.floats(6 * width, 1.0)).collect();
        // The first by a list with rows that there are not, the second row by row, the third the same row always.
        let list: Vec<u32> = (0..count)
            .map(|i| match draws.below(8) {
                0 => u32::MAX,
                1 if i % 2 == 0 => 6,
                row => row as u32 % 6,
            })
            .collect();
        let (on_tables, on_list) =
            (tables.iter().map(|table| on.copy(table)).collect::<Vec<_>>(), on.copy(&list));
        let part = |p: usize| Part {
            table: (&on_tables[p], Layout::dense(widths[p])),
            shape: [6, widths[p]],
            list: None,
        };
        let same = Layout { first: 2 * widths[2], stride: 0, step: 0 };
        let parts = [
            Part { list: Some(&on_list), ..part(0) },
            part(1),
            Part { table: (&on_tables[2], same), shape: [count, widths[2]], ..part(2) },
            Part { list: Some(&on_list), ..part(3) },
        ];
        let (columns, stride) = (widths.iter().sum::<usize>(), widths.iter().sum::<usize>() + 3);
        let mut out = on.room(count * stride + 2);
        let layout = Layout { first: 2, stride, step: 0 };
        join_rows(on.context(), &parts, count, (&mut out, layout)).unwrap();
        let row_of = |p: usize, i: usize| match p {
            0 | 3 => (list[i] as usize).min(6),
            1 => i.min(6),
            _ => 2,
        };
        let mut expected = vec![f32::NAN; count * stride + 2];
        for i in 0..count {
            let mut at = 2 + i * stride;
            for (p, width) in widths.into_iter().enumerate() {
                let row = tables[p].chunks(width.max(1)).nth(row_of(p, i));
                let zeros = vec![0.0; width];
                expected[at..at + width].copy_from_slice(row.unwrap_or(&zeros));
                at += width;
            }
        }
        assert_eq!(bits(&out.copy_to_host().unwrap()), bits(&expected), "{count} rows of {columns}");
    }
    let (table, mut out) = (on.copy(&[1.0_f32; 11]), on.room(12));
    let part = Part { table: (&table, Layout::dense(4)), shape: [3, 4], list: None };
    let error = join_rows(on.context(), &[part], 3, (&mut out, Layout::dense(4))).unwrap_err().to_string();
    assert!(error.contains("the table: 11 values, and 12 are needed"), "{error}");
    let part = Part { shape: [2, 4], ..part };
    let error =
        join_rows(on.context(), &[part; 5], 1, (&mut out, Layout::dense(20))).unwrap_err().to_string();
    assert!(error.contains("results: 12 values, and 20 are needed"), "{error}");
    let part = Part { shape: [2, 2], ..part };
    let error =
        join_rows(on.context(), &[part; 5], 1, (&mut out, Layout::dense(20))).unwrap_err().to_string();
    assert!(error.contains("tables: 4 values, and 5 are needed"), "{error}");
    let short = on.copy(&[0_u32; 2]);
    let part = Part { list: Some(&short), ..part };
    let error = add_rows(on.context(), part, None, 3, Put::ADD, (&mut out, Layout::dense(4))).unwrap_err();
    assert!(error.to_string().contains("the list of rows: 2 values"), "{error}");
}

#[test]
fn rows_are_added_and_their_gradients_spread_on_a_gpu_as_on_the_tape() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(2);
    for (rows, readers, cols) in [(1, 1, 1), (13, 90, 33), (50, 20, 100), (3, 400, 5), (20, 900, 40)] {
        let mut index: Vec<u32> = (0..readers).map(|_| draws.below(rows) as u32).collect();
        if rows == 20 {
            // Hubs, and rows at the border between few readers and many, among others.
            let counts = [600, 64, 65, 1, 2, 90];
            let of_row = |(row, &count): (u32, &usize)| std::iter::repeat_n(3 * row, count);
            let skewed: Vec<u32> = (0..).zip(&counts).flat_map(of_row).collect();
            let turned = (0..skewed.len()).map(|i| skewed[i * 7 % skewed.len()]);
            index.splice(..skewed.len(), turned);
        }
        let (table, x) = (draws.floats(rows * cols, 1.0), draws.floats(readers * cols, 1.0));
        let d = draws.floats(readers * cols, 1.0);
        let inputs = Inputs::new(&[("x", cols, &x), ("table", cols, &table)]);
        let (value, gradients) = inputs.run(&d, &["x", "table"], |tape, parameters| {
            let [x, table] = ["x", "table"].map(|name| tape.param(parameters.find(name).unwrap()));
            let sum = tape.add_gathered(x, table, index.clone().into());
            tape.relu(sum)
        });
        let (on_table, on_index) = (on.copy(&table), on.copy(&index));
        let part =
            Part { table: (&on_table, Layout::dense(cols)), shape: [rows, cols], list: Some(&on_index) };
        let (mut out, layout) = (on.copy(&x), Layout::dense(cols));
        let put = Put::ADD.rectified();
        add_rows(on.context(), part, None, readers, put, (&mut out, layout)).unwrap();
        assert_eq!(bits(&out.copy_to_host().unwrap()), bits(&value), "{readers} rows of {cols} added");
        let (on_x, mut sum) = (on.copy(&x), on.room(readers * cols));
        let before = Part { table: (&on_x, layout), shape: [readers, cols], list: None };
        add_rows(on.context(), part, Some(before), readers, put, (&mut sum, layout)).unwrap();
        assert_eq!(
            bits(&sum.copy_to_host().unwrap()),
            bits(&value),
            "{readers} rows of {cols} added to others"
        );
        let narrow = Part { shape: [readers, cols - 1], ..before };
        let error = add_rows(on.context(), part, Some(narrow), readers, put, (&mut sum, layout)).unwrap_err();
        assert!(error.to_string().contains("columns to add to: "), "{error}");
        let mut back = on.copy(&d);
        relu_backward(on.context(), &mut back, &out, readers * cols).unwrap();
        assert_eq!(bits(&back.copy_to_host().unwrap()), bits(&gradients[0]), "the rectifier's gradient");
        let mut copied = on.room(readers * cols);
        add_rows(on.context(), part, None, readers, Put::REPLACE, (&mut copied, layout)).unwrap();
        let plain: Vec<f32> =
            index.iter().flat_map(|&row| table[row as usize * cols..][..cols].to_vec()).collect();
        assert_eq!(bits(&copied.copy_to_host().unwrap()), bits(&plain), "{readers} rows of {cols} copied");

        let inverse = InverseIndex::new(&index, rows).sent(&CudaWork::new(cuda.clone()));
        let mut dx = on.room(rows * cols);
        scatter_add_rows(on.context(), &inverse, cols, (&back, layout), true, (&mut dx, layout)).unwrap();
        agree(&dx, wide(&gradients[1]), "gradient of the table");
        scatter_add_rows(on.context(), &inverse, cols, (&back, layout), false, (&mut dx, layout)).unwrap();
        agree(&dx, wide(&gradients[1]).map(|sum| 2.0 * sum), "the same, added");
        let error =
            scatter_add_rows(on.context(), &inverse, cols + 1, (&back, layout), true, (&mut dx, layout));
        assert!(error.unwrap_err().to_string().contains("overlap") || rows == 1, "too many columns");
        let mut short = on.room(readers * cols - 1);
        let error = relu_backward(on.context(), &mut short, &out, readers * cols).unwrap_err().to_string();
        assert!(error.contains("gradients: "), "{error}");
    }
}

#[test]
fn gradients_of_empty_slots_go_nowhere_and_rows_without_users_get_zeros() {
    let cuda = gpu();
    let on = On(&cuda);
    let inverse = InverseIndex::new(&[2, u32::MAX, 0, 2], 4).sent(&CudaWork::new(cuda.clone()));
    // Two columns of rows of three.
    let d = on.copy(&[1.0_f32, 2.0, 9.0, 3.0, 4.0, 9.0, 5.0, 6.0, 9.0, 7.0, 8.0, 9.0]);
    let mut dx = on.copy(&[-1.0_f32; 4 * 3]);
    let (from, layout) = (Layout { first: 0, stride: 3, step: 0 }, Layout { first: 1, stride: 3, step: 0 });
    scatter_add_rows(on.context(), &inverse, 2, (&d, from), true, (&mut dx, layout)).unwrap();
    let found = dx.copy_to_host().unwrap();
    assert_eq!(found, [-1.0, 5.0, 6.0, -1.0, 0.0, 0.0, -1.0, 8.0, 10.0, -1.0, 0.0, 0.0]);
    // A hub in a sorted index, whose lists are not made one by one.
    let sorted: Vec<u32> = [0].into_iter().chain([1; 200]).chain([3]).collect();
    let hub = InverseIndex::new(&sorted, 4).sent(&CudaWork::new(cuda.clone()));
    let d: Vec<f32> = (0..202).map(|place| place as f32).collect();
    let (d, mut dx) = (on.copy(&d), on.copy(&[7.0_f32; 4]));
    let dense = Layout::dense(1);
    scatter_add_rows(on.context(), &hub, 1, (&d, dense), true, (&mut dx, dense)).unwrap();
    assert_eq!(dx.copy_to_host().unwrap(), [0.0, 20_100.0, 0.0, 201.0]);
    let nobody = InverseIndex::new(&[], 2).sent(&CudaWork::new(cuda.clone()));
    let mut dx = on.copy(&[7.0_f32; 4]);
    let none = on.copy::<f32>(&[]);
    scatter_add_rows(on.context(), &nobody, 2, (&none, from), true, (&mut dx, Layout::dense(2))).unwrap();
    assert_eq!(dx.copy_to_host().unwrap(), [0.0; 4]);
}

#[test]
fn values_are_dropped_on_a_gpu_bit_for_bit_as_on_the_tape() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(3);
    for (count, p) in [(1, 0.5), (1_003, 0.1), (130, 0.9)] {
        let (x, d) = (draws.floats(count, 1.0), draws.floats(count, 1.0));
        let key = [draws.word(), draws.word(), draws.word()];
        let inputs = Inputs::new(&[("x", 1, &x)]);
        let (value, gradients) = inputs.run(&d, &["x"], |tape, parameters| {
            let x = tape.param(parameters.find("x").unwrap());
            tape.dropout(x, p, key)
        });
        let (x, mut out, mask) = (on.copy(&x), on.room(count), Mask::new(p, key));
        drop_out(on.context(), mask, &x, count, &mut out).unwrap();
        assert_eq!(bits(&out.copy_to_host().unwrap()), bits(&value), "{count} values, {p}");
        drop_out(on.context(), mask, &on.copy(&d), count, &mut out).unwrap();
        assert_eq!(bits(&out.copy_to_host().unwrap()), bits(&gradients[0]), "{count} gradients, {p}");
        let error = drop_out(on.context(), mask, &x, count + 1, &mut out).unwrap_err().to_string();
        assert!(error.contains(&format!("values: {count} values")), "{error}");
    }
}
