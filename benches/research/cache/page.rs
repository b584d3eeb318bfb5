//! The page of the cache comparison.

use super::{AccessFigures, Figures, POLICIES, Policy, SizeFigures, StreamFigures};

/// The page.
pub fn page(figures: &Figures) -> String {
    let Figures { batch_events, fanout, epochs, look_ahead_rounds, row_dimension, streams } = figures;
    let streams: String = streams.iter().map(stream).collect();
    format!(
        "# Rows on the device: what a cache saves\n\n\
         <!-- Made by `make cache-bench`: change benches/research/cache/page.rs, not this. -->\n\n\
         Training reads the feature rows of the edges and nodes that it sampled. A cache on the device avoids\n\
         copying some of them. The same rounds are replayed through several caches: batches of\n\
         {batch_events} events in their order, each event with a random destination, {epochs} epochs whose random\n\
         numbers differ, {fanout} neighbors per seed, each row of a round counted once.\n\n\
         - **ours** (`src/feature/cache`) knows {look_ahead_rounds} rounds beyond the current one and keeps the rows\n\
         \x20 that they need soonest; of the other rows, those used last.\n\
         - **lru**, **lfu**, **fifo** cache every row that they miss. **static** is filled with the rows that\n\
         \x20 two epochs, sampled before with other random numbers, read most often, and never changes.\n\
         - **optimum** knows every round: no policy avoids more copies.\n\
         \n\
         Figures are the percentage of rows read that did not have to be copied: those found in the cache, less\n\
         those copied there in advance (the rows that ours restores, and the initial rows of static). Ours is in\n\
         **bold** where it beats all four, or equals the optimum. *Found* are the rows of a round that ours had\n\
         when it began, including restored ones; for the others the round has to wait.\n\n\
         Cost: the time per round that ours takes to decide, beside the time that the copies it avoids would\n\
         take from memory to memory on the same machine, in rows of {row_dimension} values; and the bandwidth\n\
         of a link (GB/s) below which the decision takes less time than the copies it avoids. The decision needs\n\
         no device, so the host can make it for the next round while the device computes this one. Medians of one\n\
         run, one thread, wall-clock time: other work on the machine lengthens them, most where a round takes\n\
         some milliseconds. Hit rates are not affected.\n{streams}\n\
         All figures, by epoch too, are in [cache.json](cache.json).\n"
    )
}

fn stream(figures: &StreamFigures) -> String {
    let StreamFigures { stream, events, nodes, accesses } = figures;
    let accesses: String = accesses.iter().map(access).collect();
    format!("\n## {stream}: {events} events, {nodes} nodes\n{accesses}")
}

fn access(figures: &AccessFigures) -> String {
    let AccessFigures { sampling, rows, rows_count, rounds, rows_per_round, sizes, .. } = figures;
    let names: Vec<String> = POLICIES.iter().map(|policy| format!("{policy:?}").to_lowercase()).collect();
    let head = format!("| slots | {} | found | decides, µs | avoids, µs | GB/s |\n", names.join(" | "));
    let rule = format!("|--:|{}\n", "--:|".repeat(names.len() + 4));
    let lines: String = sizes.iter().map(line).collect();
    format!(
        "\n### {}, {rows}\n\n{rounds} rounds of {rows_per_round:.0} of {rows_count} rows.\n\n{head}{rule}{lines}",
        sampling.replace('_', " ")
    )
}

fn line(size: &SizeFigures) -> String {
    let ratio = |policy| size.hit_ratio.get(&policy).copied();
    let rivals = [Policy::Lru, Policy::Lfu, Policy::Fifo, Policy::Static].map(ratio);
    let best = rivals.into_iter().flatten().fold(0.0, f64::max);
    let cell = |policy| match ratio(policy) {
        None => "-".to_owned(),
        Some(ours) if policy == Policy::Ours && (ours > best || Some(ours) == ratio(Policy::Optimum)) => {
            format!("**{:.2}**", 100.0 * ours)
        }
        Some(ratio) => format!("{:.2}", 100.0 * ratio),
    };
    let cells = POLICIES.map(cell).join(" | ");
    let ours = size.ours.as_ref().map_or("- | - | - | -".to_owned(), |ours| {
        format!(
            "{:.2} | {:.0} | {:.0} | {:.2}",
            100.0 * ours.found_ratio,
            1e6 * ours.round_seconds.median,
            1e6 * ours.avoided_copy_seconds_per_round,
            1e-9 * ours.break_even_bytes_per_second
        )
    });
    format!("| {} ({} %) | {cells} | {ours} |\n", size.slots, 100.0 * size.share_of_rows)
}
