"""What operators' requests return. Each class has the members of the response, as the OpenAPI document names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is durable.

    Attributes:
        name: Its name, as `evergraph checkpoint restore` takes it.
        position: It reflects every log position below.
        model_version: Version of the served weights.
    """

    name: str
    position: int
    model_version: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of graph, names and rows that is durable.

    Attributes:
        name: Its name, a folder in `snapshots` of the data directory.
        position: It holds every log position below.
    """

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class LogLevel:
    """The log level.

    Attributes:
        level: The level or filter in effect.
        configured: The level in the settings, in effect again after a restart.
    """

    level: str
    configured: str


@dataclass(frozen=True, slots=True)
class LogCut:
    """The beginning of the log after a cut.

    Attributes:
        first_position: The first position that the log has.
        bytes: Bytes of the log on disk.
    """

    first_position: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelVersions:
    """The version that is served, by an operator's decision.

    Attributes:
        model_version: The version that is served now.
        replaced_version: The one that was served before; `None` before the first promotion.
        candidate_version: Version of the weights that are trained.
        position: Every log position below is learned.
        memory_restored: Whether node memory went back, too: never.
    """

    model_version: int
    replaced_version: int | None
    candidate_version: int
    position: int
    memory_restored: bool


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that was changed since it took effect, with its values before and now; `None`: there is none."""

    key: str
    before: Any
    now: Any


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload of the settings did.

    Attributes:
        applied: Changed settings that are in effect now.
        waiting: Changed settings that take effect at the next start.
    """

    applied: tuple[ChangedSetting, ...]
    waiting: tuple[ChangedSetting, ...]


@dataclass(frozen=True, slots=True)
class SourcePause:
    """A source of events and whether an operator paused it.

    Attributes:
        source: Its name.
        paused: Whether it is paused.
        by: Name of the key that paused it; `None` while it is not paused.
        since_unix_ms: Since when, milliseconds since the Unix epoch; `None` while it is not paused.
    """

    source: str
    paused: bool
    by: str | None
    since_unix_ms: int | None


@dataclass(frozen=True, slots=True)
class Training:
    """Whether weights are trained; attributes as those of `SourcePause`."""

    paused: bool
    by: str | None
    since_unix_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionSeek:
    """What a seek does to one partition, in offsets of the broker.

    Attributes:
        partition: The partition.
        to: The next offset to read after it.
        skipped: Number of offsets that are never read.
        read_again: Number of offsets that are read again.
        broker_earliest: The oldest offset that the broker has.
        broker_latest: One past the newest offset that the broker has.
        from_offset: The next offset to read before the seek; `None` if nothing of the partition was read.
    """

    partition: int
    to: int
    skipped: int
    read_again: int
    broker_earliest: int
    broker_latest: int
    from_offset: int | None


@dataclass(frozen=True, slots=True)
class Seek:
    """A seek of a Kafka source.

    Attributes:
        source: The source.
        done: Whether it was carried out; with `dry_run` it was not.
        partitions: The partitions that were, or are, elsewhere.
    """

    source: str
    done: bool
    partitions: tuple[PartitionSeek, ...]
