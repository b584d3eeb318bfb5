//! What goes through pinned memory arrives, in order, however full that is.

use evergraph::device::cuda::{CudaBuffer, Fetched, Staging};

use super::layers::On;
use super::{Draws, gpu, real_gpu};

#[test]
fn uploads_of_many_sizes_arrive_also_when_the_room_is_used_again() {
    let cuda = gpu();
    let (on, mut draws) = (On(&cuda), Draws::new(1));
    let mut staging = Staging::new(&cuda, 1).unwrap();
    let all = staging.bytes();
    assert!(all >= 1 && staging.taken() == 0, "{staging:?}");
    let mut expected: Vec<(CudaBuffer<f32>, Vec<f32>)> = Vec::new();
    let mut most = 0;
    for number in 0..60 {
        let len = [0, 1, 31, 32, 33, 1 + draws.below(5000), 1 + draws.below(all / 8)][number % 7];
        let values = draws.floats(len, 1.0);
        let mut buffer = on.room(len + number % 3);
        staging.upload(&values, &mut buffer).unwrap();
        assert!(staging.taken() <= all && staging.taken().is_multiple_of(128), "{staging:?}");
        most = most.max(staging.taken());
        expected.push((buffer, values));
    }
    assert!(most > all / 2, "the room was nearly full at some time");
    for (buffer, values) in &expected {
        let found = buffer.copy_to_host().unwrap();
        assert_eq!(found[..values.len()], values[..], "{} values", values.len());
        assert!(found[values.len()..].iter().all(|value| value.is_nan()), "behind them nothing is written");
    }
}

#[test]
fn a_full_room_is_emptied_behind_a_wait_and_what_never_fits_goes_straight() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut staging = Staging::new(&cuda, 1).unwrap();
    let all = staging.bytes();
    let values: Vec<u64> = (0..all as u64 / 8).collect();
    let mut whole = on.copy(&vec![0_u64; values.len()]);
    staging.upload(&values, &mut whole).unwrap();
    assert_eq!(staging.taken(), all, "exactly full");
    let mut one = on.copy(&[0_u64]);
    staging.upload(&[7_u64], &mut one).unwrap();
    assert_eq!(staging.taken(), 128, "begun anew");
    let more: Vec<u64> = (0..values.len() as u64 + 1).rev().collect();
    let mut large = on.copy(&vec![0_u64; more.len()]);
    staging.upload(&more, &mut large).unwrap();
    assert_eq!(staging.taken(), 128, "not through the room");
    assert_eq!(staging.download(&large, more.len()).unwrap().read(&mut staging).unwrap(), more);
    assert_eq!(staging.taken(), 128, "neither back");
    assert_eq!((one.copy_to_host().unwrap(), whole.copy_to_host().unwrap()), (vec![7], values));
    staging.start_over();
    assert_eq!(staging.taken(), 0);
}

#[test]
fn downloads_are_read_after_a_wait_also_when_their_room_has_gone_to_others() {
    let cuda = gpu();
    let (on, mut draws) = (On(&cuda), Draws::new(2));
    let mut staging = Staging::new(&cuda, 1).unwrap();
    let mut fetched: Vec<(Fetched<f32>, Vec<f32>)> = Vec::new();
    for number in 0..40 {
        let count = [1, 0, 77, 1 + draws.below(100_000)][number % 4];
        let values = draws.floats(count, 1.0);
        let len = values.len() - number % 2 * (values.len() / 3);
        let mut buffer = on.room(values.len());
        staging.upload(&values, &mut buffer).unwrap();
        fetched.push((staging.download(&buffer, len).unwrap(), values[..len].to_vec()));
        // What comes later in the order of the stream does not reach it.
        staging.upload(&vec![f32::NAN; values.len()], &mut buffer).unwrap();
        match number % 5 {
            0 => staging.start_over(),
            // Nobody wants it any more.
            1 => drop(fetched.pop()),
            2 => assert_eq!(fetched.last().unwrap().0.read(&mut staging).unwrap(), values[..len]),
            _ => {}
        }
    }
    for (fetched, values) in &fetched {
        assert_eq!(fetched.read(&mut staging).unwrap(), *values);
        assert_eq!(fetched.read(&mut staging).unwrap(), *values, "a second time");
    }
}

#[test]
fn buffers_of_both_streams_go_through_one_room() {
    let cuda = gpu();
    let mut staging = Staging::new(&cuda, 1).unwrap();
    let bytes = staging.bytes();
    let mut buffers: Vec<CudaBuffer<u8>> = [cuda.compute(), cuda.transfer()]
        .map(|stream| CudaBuffer::zeros(&cuda, stream, bytes / 3, "a test").unwrap())
        .into();
    for round in 1..=5 {
        for (i, buffer) in buffers.iter_mut().enumerate() {
            staging.upload(&vec![round * 10 + i as u8; bytes / 3], buffer).unwrap();
        }
    }
    for (i, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer.copy_to_host().unwrap(), vec![50 + i as u8; bytes / 3]);
    }
}

#[test]
fn what_does_not_fit_and_other_gpus_are_refused() {
    let (cuda, other) = (gpu(), super::fresh_gpu());
    let on = On(&cuda);
    let mut staging = Staging::new(&cuda, 1).unwrap();
    let mut two = on.copy(&[1_u32, 2]);
    let error = staging.upload(&[3_u32; 3], &mut two).unwrap_err().to_string();
    assert!(error.contains("the buffer: 2 values, and 3 are needed"), "{error}");
    let error = staging.download(&two, 3).unwrap_err().to_string();
    assert!(error.contains("the buffer: 2 values, and 3 are needed"), "{error}");
    assert_eq!(two.copy_to_host().unwrap(), [1, 2], "nothing was done");
    let fetched = staging.download(&two, 2).unwrap();
    let error = fetched.read(&mut Staging::new(&cuda, 1).unwrap()).unwrap_err().to_string();
    assert!(error.contains("through other pinned memory"), "{error}");
    if super::real_gpu().is_none() {
        // A real GPU is opened twice as one.
        let mut far = CudaBuffer::zeros(&other, other.compute(), 1, "a test").unwrap();
        let error = staging.upload(&[3_u32], &mut far).unwrap_err().to_string();
        assert!(error.contains("not mapped for the GPU"), "{error}");
    }
    assert!(Staging::new(&cuda, usize::MAX).is_err());
}

/// What is refused when something is dropped is reported by the next call, which has to do its own work all the same.
#[test]
#[ignore = "run by a_wait_waits_whatever_was_refused_before_it"]
fn a_wait_behind_a_refusal() {
    let Some(cuda) = real_gpu() else { return };
    let on = On(&cuda);
    let (from, mut to) = (on.copy(&[7.0_f32; 64]), on.room(64));
    let mut asked = || {
        let dropped = on.copy(&[0_u8]);
        to.copy_front_from(&from, 64).unwrap();
        let event = cuda.compute().record().unwrap();
        assert!(!event.is_over().unwrap(), "nothing happens before somebody waits");
        drop(dropped);
        event
    };
    let event = asked();
    event.synchronize().unwrap_err();
    assert!(event.is_over().unwrap());
    let event = asked();
    cuda.compute().synchronize().unwrap_err();
    assert!(event.is_over().unwrap());
    event.synchronize().unwrap();
}
