//! Which models a GPU computes: those whose operations have kernels, in sizes that the kernels have. What a GPU does
//! not compute the CPU does.

use super::builder::ModelError;
use super::tgn::{Aggregator, Embedding};
use super::{ModelOptions, TgnOptions};
use crate::device::Device;
use crate::device::cuda::layers::{AttentionSizes, MIXING_MAX};

/// Attention of seeds over slots, with rows of these many columns of nodes, edges and times.
fn attends(heads: usize, slots: usize, columns: [usize; 3]) -> Result<(), String> {
    let [node, edge, time] = columns;
    AttentionSizes { seeds: 1, slots, heads, node, edge, time }.check().map_err(|error| error.to_string())
}

impl ModelOptions {
    /// Whether `device` computes the model.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check_device(&self, device: &Device) -> Result<(), ModelError> {
        if *device == Device::Cpu {
            return Ok(());
        }
        let refused = self.check_gpu();
        refused.map_err(|why| ModelError::Device { model: self.name(), device: device.to_string(), why })
    }

    /// Whether a GPU computes the model.
    ///
    /// # Errors
    /// Why none does.
    pub fn check_gpu(&self) -> Result<(), String> {
        match self {
            options if options.needs().walks.is_some() => Err("walks are counted on the CPU".to_owned()),
            Self::Tgn(tgn) => of_tgn(tgn),
            Self::Tgat(tgat) => {
                let edge = tgat.edge_feature_dim;
                let typed = tgat.embedding_dim + tgat.edge_types.width;
                attends(tgat.heads, tgat.fanout, [typed, edge, tgat.time_dim])
            }
            Self::GraphMixer(mixer) if mixer.fanout > MIXING_MAX => {
                Err(format!("{} slots are mixed, and {MIXING_MAX} are the most", mixer.fanout))
            }
            Self::GraphMixer(_) => Ok(()),
            _ => Err("some of its operations have no kernels".to_owned()),
        }
    }
}

fn of_tgn(tgn: &TgnOptions) -> Result<(), String> {
    match tgn.embedding {
        Embedding::Time => return Err("statistics of gaps are kept on the CPU".to_owned()),
        Embedding::Identity => {}
        Embedding::Attention => {
            let typed = tgn.memory_dim + tgn.edge_types.width;
            attends(tgn.heads, tgn.fanout, [typed, tgn.edge_feature_dim, tgn.time_dim])?;
        }
    }
    if tgn.aggregator == Aggregator::Mean && tgn.edge_types.known > 0 {
        return Err("means of messages of several types of edges have no kernel".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GatOptions, TgatOptions};

    /// What would keep a GPU from computing it; needs no GPU.
    fn refused(tgn: TgnOptions) -> Option<String> {
        of_tgn(&tgn).err()
    }

    #[test]
    fn the_cpu_computes_all_and_a_gpu_says_what_it_does_not() {
        for options in
            [TgnOptions::default().into(), GatOptions::default().into(), TgatOptions::default().into()]
        {
            let options: ModelOptions = options;
            assert_eq!(options.check_device(&Device::Cpu), Ok(()));
        }
        let tgn = TgnOptions { edge_feature_dim: 172, ..TgnOptions::default() };
        assert_eq!(refused(tgn), None);
        assert!(refused(TgnOptions::jodie()).unwrap().contains("gaps"));
        assert!(refused(TgnOptions { edge_feature_dim: 900, ..tgn }).unwrap().contains("columns"));
        assert!(refused(TgnOptions { fanout: 40, ..tgn }).unwrap().contains("40 slots"));
        assert!(attends(3, 10, [100, 0, 100]).unwrap_err().contains("3 heads"));
    }
}
