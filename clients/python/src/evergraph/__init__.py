"""Evergraph from Python: a client of the daemon, a daemon of one's own, and evaluation of models.

```python
import evergraph

with evergraph.run() as daemon, daemon.client() as client:
    client.push([{"src": "user-1", "dst": "item-7", "ts": 1}], wait="visible")
    print(client.embeddings(["user-1", "item-7"]).array)
```
"""

from ._attempts import Retry
from ._transport import __version__
from .admin import (
    ChangedSetting,
    Checkpoint,
    LogCut,
    LogLevel,
    ModelVersions,
    PartitionSeek,
    Reload,
    Seek,
    Snapshot,
    SourcePause,
    Training,
)
from .async_client import AsyncClient
from .client import Client
from .daemon import Daemon, run
from .errors import (
    AllRejectedError,
    ApiError,
    AuthenticationError,
    ConnectionFailedError,
    DaemonStartError,
    EvaluationError,
    EvergraphError,
    ForbiddenError,
    IndexDisabledError,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
    NotYetVisibleError,
    OutcomeUnknownError,
    RateLimitedError,
    RequestTimeoutError,
    UnavailableError,
    UnknownNodeError,
)
from .evaluation import Evaluation, evaluate
from .ranking import mrr, ranks
from .results import (
    NO_TIME,
    Anomalies,
    Embeddings,
    Freshness,
    IndexFacts,
    Key,
    NeighborPage,
    Node,
    NodeMap,
    PushResult,
    Ranking,
    Rankings,
    Rejected,
    Scores,
    Source,
)
from .state import Check, Health, Info, Limits, Status

__all__ = [
    "NO_TIME",
    "AllRejectedError",
    "Anomalies",
    "ApiError",
    "AsyncClient",
    "AuthenticationError",
    "ChangedSetting",
    "Check",
    "Checkpoint",
    "Client",
    "ConnectionFailedError",
    "Daemon",
    "DaemonStartError",
    "Embeddings",
    "Evaluation",
    "EvaluationError",
    "EvergraphError",
    "ForbiddenError",
    "Freshness",
    "Health",
    "IndexDisabledError",
    "IndexFacts",
    "Info",
    "InvalidRequestError",
    "Key",
    "Limits",
    "LogCut",
    "LogLevel",
    "MalformedResponseError",
    "ModelVersions",
    "NeighborPage",
    "Node",
    "NodeMap",
    "NotFoundError",
    "NotYetVisibleError",
    "OutcomeUnknownError",
    "PartitionSeek",
    "PushResult",
    "Ranking",
    "Rankings",
    "RateLimitedError",
    "Rejected",
    "Reload",
    "RequestTimeoutError",
    "Retry",
    "Scores",
    "Seek",
    "Snapshot",
    "Source",
    "SourcePause",
    "Status",
    "Training",
    "UnavailableError",
    "UnknownNodeError",
    "__version__",
    "evaluate",
    "mrr",
    "ranks",
    "run",
]
