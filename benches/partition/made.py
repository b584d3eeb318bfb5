"""A made stream of more nodes than there are real ones of: ends of events by a power law of their rank."""

import math

from streams import FANOUT


class Made:
    """Half of the nodes are sources, half destinations; the share of both follows `1 / rank ** exponent`."""

    def __init__(self, nodes, exponent, batch_events, draw):
        self.side, self.exponent, self.batch_events, self.draw = nodes // 2, exponent, batch_events, draw

    def rank(self):
        """A rank below the number of nodes of a side: the inverse of the law's integral."""
        rest = 1 - self.exponent
        if rest == 0:
            return int((self.side + 1) ** self.draw.random()) - 1
        return int((1 + self.draw.random() * ((self.side + 1) ** rest - 1)) ** (1 / rest)) - 1

    def source(self):
        return 2 * self.rank()

    def destination(self):
        return 2 * self.rank() + 1

    def hubs(self, machines):
        """As those of a real stream: by the share that the law gives each rank."""
        found = []
        for rank in range(self.side):
            share = (self.below(rank + 1) - self.below(rank)) / self.below(self.side) / 2
            if share < 1 / machines / 4:
                break
            found += [2 * rank, 2 * rank + 1]
        return frozenset(found)

    def below(self, rank):
        """What the law gives all ranks below this one: its integral."""
        rest = 1 - self.exponent
        return math.log(rank + 1) if rest == 0 else ((rank + 1) ** rest - 1) / rest

    def batches(self, number):
        """So many, as those of a real stream. Neighbors are drawn as the ends of events are."""
        for _ in range(number):
            batch = [(self.source(), self.destination(), self.destination()) for _ in range(self.batch_events)]
            nodes = {node for event in batch for node in event}
            other = lambda node: self.source if node % 2 else self.destination
            yield batch, {node: tuple(other(node)() for _ in range(FANOUT)) for node in nodes}
