"""Shares of rows: the rows of nodes, dealt to threads in pieces."""

import numpy as np
from numpy.typing import NDArray

from burnish.boost.kernels import inlined

# Columns of a piece: a run of rows of one unit (a node's rows in one group of features) that one thread takes.
GROUP, NODE, BEGIN, END, TARGET = range(5)  # TARGET: 0 if the piece is its unit's first, 1 if it adds to one


@inlined
def deal_rows(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    groups: int,
    threads: int,
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
) -> int:
    """Deals the rows of nodes, in each of several groups, to threads in equal shares.

    pieces: (groups · nodes + threads, 5), written in order; start: (threads + 1,), where each share's begin. Returns
    how many pieces there are.
    """
    total = np.int64(0)
    for node in range(len(begin)):
        total += end[node] - begin[node]
    total *= groups
    count, share, done = 0, 1, np.int64(0)  # rows of all units that are dealt already
    start[0] = 0
    while share < threads and total * share // threads == 0:
        start[share] = 0
        share += 1
    for group in range(groups):
        for node in range(len(begin)):
            low, high = begin[node], end[node]
            while low < high:
                limit = total * share // threads if share < threads else total
                stop = min(high, low + limit - done)
                piece = pieces[count]
                piece[0] = group
                piece[1] = node
                piece[2] = low
                piece[3] = stop
                piece[4] = low > begin[node]
                count += 1
                done += stop - low
                low = stop
                while share < threads and done >= total * share // threads:
                    start[share] = count
                    share += 1
    while share <= threads:
        start[share] = count
        share += 1
    return count
