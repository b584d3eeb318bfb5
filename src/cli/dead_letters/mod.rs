//! `evergraph dead-letters`: list, show and send again the events that were refused.

mod replay;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, bail, ensure};
use chrono::DateTime;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::DaemonArgs;
use super::sample::{describe, printable};
use super::{ConfigArgs, output};
use crate::config::Config;
use crate::daemon::source_options::{dead_letter_file, decode_options, kafka_sources};
use crate::daemon::stopped::expect_data_directory;
use crate::ingest::dead_letter::{DeadLetter, DeadLetterFileOptions, KeptLetter, KeptLetters};
use crate::ingest::kafka::SampledMessage;
use crate::ingest::mapping::{Decoded, MessageReader};
use crate::ingest::rejection::Rejection;

/// Characters of an event that a list shows.
const SHOWN_CHARACTERS: usize = 100;

/// `evergraph dead-letters`
#[derive(Debug, Args)]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLettersCommand {
    /// List dead letters of the file below data.dir, newest last, and whether the settings as they are now read them.
    /// The daemon may be running. Those in a topic of dead letters are messages of that topic
    List {
        #[command(flatten)]
        which: Which,
        /// Most that are listed, the newest
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one dead letter: origin, bytes, headers, why it was refused, and what the settings as they are now read in
    /// it
    Show {
        /// Its id, as listed, or the beginning of it
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Send dead letters again that the settings as they are now read, after a mapping was mended: those from Kafka to
    /// their topic and partition, pushed ones to the daemon at --url. Restart the daemon with the settings first. An
    /// event without an idempotency key is stored again if it is sent twice, as when this command is killed. Without
    /// --yes it prints the plan, changes nothing and fails
    Replay {
        #[command(flatten)]
        which: Which,
        /// Only the letter with this id, as listed; may be given several times
        #[arg(long, value_name = "ID")]
        id: Vec<String>,
        /// Also letters that the settings do not read
        #[arg(long)]
        unreadable: bool,
        /// Send them
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        daemon: DaemonArgs,
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Which letters.
#[derive(Debug, Args)]
struct Which {
    /// Only those refused for this reason, such as bad_time
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only those of this source, such as http or kafka:payments
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// Also those that were sent again
    #[arg(long)]
    replayed: bool,
}

impl Which {
    fn has(&self, kept: &KeptLetter) -> bool {
        let letter = &kept.letter;
        (self.replayed || !kept.replayed)
            && self.reason.as_ref().is_none_or(|reason| letter.rejection.reason.as_str() == reason)
            && self.source.as_ref().is_none_or(|source| *letter.source == **source)
    }
}

/// Runs the command.
pub(super) fn run(args: &DeadLettersArgs) -> Result<()> {
    match &args.command {
        DeadLettersCommand::List { which, limit, config, json } => {
            list(&Letters::open(config)?, which, *limit, *json)
        }
        DeadLettersCommand::Show { id, config, json } => show(&Letters::open(config)?, id, *json),
        DeadLettersCommand::Replay { which, id, unreadable, yes, daemon, config, json } => {
            let mut letters = Letters::open(config)?;
            let plan = letters.plan(which, id, *unreadable)?;
            ensure!(
                !plan.is_empty(),
                "no dead letter that was not sent again is readable by the settings as they are now"
            );
            if *yes {
                replay::send(&mut letters, &plan, daemon, *json)
            } else {
                replay::explain(&letters, &plan, *json)
            }
        }
    }
}

/// The letters of a data directory, and how the settings read them.
struct Letters {
    config: Config,
    file: DeadLetterFileOptions,
    kept: KeptLetters,
    /// By name of the source.
    kafka: BTreeMap<String, MessageReader>,
    http: MessageReader,
    /// For topics that the settings do not name any more.
    plain: MessageReader,
}

impl Letters {
    fn open(config: &ConfigArgs) -> Result<Self> {
        let config = config.load()?;
        expect_data_directory(&config.data.dir)?;
        let file = dead_letter_file(&config);
        let kept = KeptLetters::read(&file)?;
        if kept.damaged > 0 {
            output::print_status(&format!(
                "note: {} lines beside {} are no dead letters and are left out",
                kept.damaged,
                file.path.display()
            ));
        }
        let topics = kafka_sources(&config)?.into_iter();
        let kafka = topics.map(|(_, topic)| (topic.source_name(), topic.reader())).collect();
        let decode = decode_options(&config);
        let http = MessageReader::new(decode, config.mapping(&config.ingest.http.mapping));
        Ok(Self { file, kept, kafka, http, plain: MessageReader::new(decode, None), config })
    }

    /// What the settings as they are now read in a letter. What depends on the stream, such as lateness, the daemon
    /// decides.
    fn read(&self, letter: &DeadLetter) -> Result<Decoded, Rejection> {
        let reader = match is_from_kafka(letter) {
            true => self.kafka.get(&*letter.source).unwrap_or(&self.plain),
            false => &self.http,
        };
        let message = SampledMessage {
            partition: letter.partition,
            offset: letter.offset,
            key: letter.key.clone(),
            value: letter.payload.clone(),
            headers: letter.headers.clone(),
        };
        let read = message.read(|message| reader.read(message));
        read.unwrap_or_else(|| reader.tombstone(letter.key.as_deref()))
    }

    fn chosen<'a>(&'a self, which: &'a Which) -> impl Iterator<Item = &'a KeptLetter> {
        self.kept.letters.iter().filter(|kept| which.has(kept))
    }

    /// Places of the letters to send.
    fn plan(&self, which: &Which, ids: &[String], unreadable: bool) -> Result<Vec<usize>> {
        for id in ids {
            ensure!(
                self.kept.letters.iter().any(|kept| kept.id == *id),
                "--id {id}: there is no such dead letter; `evergraph dead-letters list` names them"
            );
        }
        let all = self.kept.letters.iter().enumerate();
        let chosen = all.filter(|(_, kept)| which.has(kept) && (ids.is_empty() || ids.contains(&kept.id)));
        let sendable = chosen.filter(|(_, kept)| !is_row(&kept.letter));
        let read = sendable.filter(|(_, kept)| unreadable || self.read(&kept.letter).is_ok());
        Ok(read.map(|(place, _)| place).collect())
    }

    fn at(&self, place: usize) -> Option<&KeptLetter> {
        self.kept.letters.get(place)
    }
}

fn is_from_kafka(letter: &DeadLetter) -> bool {
    letter.source.starts_with("kafka:")
}

/// A row of a file is mended in the file.
fn is_row(letter: &DeadLetter) -> bool {
    letter.source.starts_with("file:")
}

fn list(letters: &Letters, which: &Which, limit: usize, json: bool) -> Result<()> {
    let chosen: Vec<&KeptLetter> = letters.chosen(which).collect();
    let (all, shown) = (chosen.len(), &chosen[chosen.len().saturating_sub(limit)..]);
    if json {
        let listed: Vec<Value> = shown.iter().map(|kept| document(letters, kept)).collect();
        return output::print(&format!("{:#}", json!({ "dead_letters_count": all, "dead_letters": listed })));
    }
    if all == 0 {
        output::print_status(&format!("no dead letter matches in {}", letters.file.path.display()));
        return Ok(());
    }
    let mut text = String::new();
    for kept in shown {
        let KeptLetter { id, letter, replayed } = kept;
        let now = match (replayed, letters.read(letter)) {
            (true, _) => "sent again",
            (false, Ok(_)) if is_row(letter) => "row of a file",
            (false, Ok(_)) => "readable now",
            (false, Err(_)) => "refused",
        };
        let (reason, payload) = (letter.rejection.reason.as_str(), text_of(letter.payload.as_deref()));
        let short: String = payload.chars().take(SHOWN_CHARACTERS).collect();
        let at = place_of(letter);
        let _ = writeln!(text, "{id}  {}  {now:13}  {reason:16}  {at}\n    {short}", time_of(letter));
    }
    let _ = write!(text, "{} of {all} dead letters", shown.len());
    output::print(&text)
}

fn show(letters: &Letters, id: &str, json: bool) -> Result<()> {
    let mut found = letters.kept.letters.iter().filter(|kept| kept.id.starts_with(id));
    let (first, second) = (found.next(), found.next());
    let Some(kept) = first.filter(|_| !id.is_empty()) else {
        bail!("there is no dead letter {id}; `evergraph dead-letters list` names them")
    };
    ensure!(second.is_none(), "several dead letters begin with {id}; give more of it");
    if json {
        return output::print(&format!("{:#}", document(letters, kept)));
    }
    let letter = &kept.letter;
    let mut text = format!(
        "id        {}\nfrom      {}\nreceived  {}\nrefused   {}: {}\n",
        kept.id,
        place_of(letter),
        time_of(letter),
        letter.rejection.reason.as_str(),
        printable(&letter.rejection.detail),
    );
    if let Some(key) = &letter.key {
        let _ = writeln!(text, "key       {}", text_of(Some(key)));
    }
    for (name, value) in &letter.headers {
        let _ = writeln!(text, "header    {}: {}", printable(name), text_of(value.as_deref()));
    }
    let _ = writeln!(text, "event     {}", text_of(letter.payload.as_deref()));
    match letters.read(letter) {
        Err(rejection) => {
            let _ = write!(text, "now       refused: {}", printable(&rejection.to_string()));
        }
        Ok(decoded) => {
            let events: Vec<String> =
                decoded.into_events().map(|incoming| printable(&describe(&incoming.event))).collect();
            let read = if events.is_empty() {
                "ignored by the settings".to_owned()
            } else {
                events.join("\n          ")
            };
            let _ = write!(text, "now       {read}");
        }
    }
    output::print(&text)
}

fn place_of(letter: &DeadLetter) -> String {
    match is_from_kafka(letter) {
        true => format!("{} partition {} offset {}", letter.source, letter.partition, letter.offset),
        false => format!("{} event {}", letter.source, letter.offset),
    }
}

fn time_of(letter: &DeadLetter) -> String {
    let time = DateTime::from_timestamp_millis(letter.received_unix_ms);
    time.map_or_else(
        || letter.received_unix_ms.to_string(),
        |time| time.format("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

fn text_of(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "(none)".to_owned(), |bytes| printable(&String::from_utf8_lossy(bytes)))
}

fn document(letters: &Letters, kept: &KeptLetter) -> Value {
    let KeptLetter { id, letter, replayed } = kept;
    let now = letters.read(letter);
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    json!({
        "id": id,
        "source": *letter.source,
        "partition": letter.partition,
        "offset": letter.offset,
        "received_unix_ms": letter.received_unix_ms,
        "reason": letter.rejection.reason.as_str(),
        "detail": letter.rejection.detail,
        "key": text(letter.key.as_deref()),
        "payload": text(letter.payload.as_deref()),
        "replayed": replayed,
        "readable": now.is_ok(),
        "refused_for": now.err().map(|rejection| rejection.to_string()),
    })
}
