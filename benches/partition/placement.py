"""What each machine computes and sends for a batch, where nodes are placed by hash and their owner computes."""

import json
from dataclasses import asdict, dataclass

# Bytes: of a row of memory or an embedding, of a node's id on the way, of one neighbor with its edge and time, and of an
# end of an event as the machine that cuts batches sends it to the owner.
ROW, ID, NEIGHBOR, END = 400, 8, 24, 28
# Events of a batch: of the real streams, and for each machine of the made ones.
BATCH = 600
# Of the weights of a TGN with rows of 100 values.
WEIGHTS = 341_601 * 4
# Exchanges of a step: rows, embeddings, the gradients of both, and the two of the gradients of the weights.
ROUNDS = 6
# What GNNFlow sends, as its code has it: a seed and its time; a neighbor's id, edge, time and time difference; a node's
# memory, message (two rows of memory), and a time for each.
RPC_SEED, RPC_NEIGHBOR, RPC_STATE = 8 + 4, 8 + 8 + 4 + 4, ROW + 4 + 2 * ROW + 4


@dataclass
class Costs:
    """Seconds of an event on one rank that computes alone, and the share that several ranks do not take from each
    other; of the network, bytes a second and seconds of a round."""

    event_seconds: float
    fixed_share: float
    bytes_per_second: float
    round_seconds: float

    @staticmethod
    def measured(path):
        case = json.loads(path.read_text())["cases"]["TGN, edges only"]
        alone = case["ranks"][0]["cpu_seconds"] / case["events"]
        # A rank of R takes fixed + (1 - fixed) / R of the time of one: the mean over the numbers of ranks.
        parts = [(one["ranks"], one["cpu_seconds"] / one["alone_cpu_seconds"]) for one in case["ranks"][1:]]
        fixed = [(part - 1 / ranks) / (1 - 1 / ranks) for ranks, part in parts]
        network = case["network"]
        return Costs(alone, sum(fixed) / len(fixed), network["gbps"] * 1e9 / 8, network["latency_us"] * 1e-6)

    def document(self):
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


class Placement:
    """Owners by hash, and nodes that every machine has a copy of."""

    def __init__(self, machines, hubs):
        self.machines, self.hubs, self.owners = machines, hubs, {}

    def owner(self, node):
        known = self.owners.get(node)
        if known is None:
            # A mix of the bits: neighboring numbers lie on machines that have nothing in common.
            mixed = (node * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & (2**64 - 1)
            mixed = ((mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
            known = self.owners[node] = (mixed >> 33) % self.machines
        return known

    def places(self, number, event):
        """Which machine scores the event of this number, and which embeds its source, destination and negative: the
        owner, or for a hub the machine that scores. Events between hubs are dealt out."""
        owned = [node for node in event[:2] if node not in self.hubs]
        scores = self.owner(owned[0]) if owned else number % self.machines
        return scores, [scores if node in self.hubs else self.owner(node) for node in event]


def count(batches, placement, costs):
    """The means over `batches` of what machines compute and send."""
    counted = [batch_counts(events, newest, placement) for events, newest in batches]
    mean = {name: sum(one[name] for one in counted) / len(counted) for name in counted[0]}
    events, machines = mean.pop("events"), placement.machines
    shared = costs.event_seconds * (1 - costs.fixed_share)
    computing = shared * events / machines * max(mean["seed_skew"], mean["row_skew"])
    # What ranks do not take from each other, of the events of one machine: mostly the optimizer.
    computing += costs.event_seconds * costs.fixed_share * min(events, BATCH)
    network = mean["bytes_most"] / costs.bytes_per_second + ROUNDS * costs.round_seconds
    # One machine cuts all batches, and sends each event to three owners.
    cutting = 3 * END * events / costs.bytes_per_second
    rates = {f"events_per_second_{times}": events / max(computing / times + network, cutting) for times in (1, 10)}
    return {"machines": machines, "hubs": len(placement.hubs), "batch_events": events} | mean | rates


def batch_counts(events, newest, placement):
    """Counts of one batch."""
    machines, hubs = placement.machines, placement.hubs
    seeds, read, sent = [0] * machines, [set() for _ in range(machines)], [0] * machines
    left = [set() for _ in range(machines)]
    touched_hubs, hub_events = set(), 0
    for number, event in enumerate(events):
        scores, places = placement.places(number, event)
        for node, place in zip(event, places):
            seeds[place] += 1
            read[place].add(node)
            read[place].update(newest[node])
            if place != scores:
                # The embedding there, its gradient back.
                sent[place] += ROW
                sent[scores] += ROW
        # Each end keeps the other's row for its message.
        left[placement.owner(event[0])].add(event[1])
        left[placement.owner(event[1])].add(event[0])
        at_hub = [node for node in event[:2] if node in hubs]
        touched_hubs.update(at_hub)
        hub_events += bool(at_hub)
    remote = 0
    for place, nodes in enumerate(read):
        for node in nodes - hubs:
            owner = placement.owner(node)
            if owner != place:
                # Its id and the gradient of its row there, the row back.
                remote += 1
                sent[place] += ID + ROW
                sent[owner] += ROW
        for node in left[place] - nodes - hubs:
            owner = placement.owner(node)
            if owner != place:
                # The same without a gradient.
                remote += 1
                sent[place] += ID
                sent[owner] += ROW
    owned = [0] * machines
    for node in set().union(*read):
        owned[placement.owner(node)] += 1
    # Along a tree, each machine passes on once: the row of each touched hub and what flowed into it, and each event of a
    # hub, for its copy of the hub's neighbors.
    hub_bytes = 2 * ROW * len(touched_hubs) + NEIGHBOR * hub_events
    whole = 2 * WEIGHTS * (1 - 1 / machines)
    each = [bytes_sent + whole + hub_bytes for bytes_sent in sent]
    return {
        "events": len(events),
        "seed_skew": max(seeds) * machines / sum(seeds),
        "row_skew": max(owned) * machines / sum(owned),
        "remote_rows_per_event": remote / len(events),
        "bytes_mean": sum(each) / machines,
        "bytes_most": max(each),
        "rpc_bytes_mean": rpc_bytes(events, newest, placement) / machines,
    }


def rpc_bytes(events, newest, placement):
    """Bytes that GNNFlow's machines send for the batch, whose events are dealt out in turn: seeds and their neighbors for
    a layer, rows of distinct nodes, rows of touched nodes back, and gradients."""
    machines, total = placement.machines, 0
    for place in range(machines):
        own = events[place::machines]
        nodes, touched = set(), set()
        for event in own:
            touched.update(event[:2])
            for node in event:
                nodes.add(node)
                nodes.update(newest[node])
                if placement.owner(node) != place:
                    total += RPC_SEED + len(newest[node]) * RPC_NEIGHBOR
        elsewhere = lambda of: sum(placement.owner(node) != place for node in of)
        total += (elsewhere(nodes) + elsewhere(touched)) * (ID + RPC_STATE)
    return total + machines * 2 * WEIGHTS * (1 - 1 / machines)
