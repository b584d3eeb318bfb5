"""Generates a stream of the shape of Wikipedia's edits, where that event file was not carried: as many users and pages,
a few of which take part in most events, numbered as they are there.

    make_stream.py FILE.csv [EVENTS]        as many events as Wikipedia's if not given
"""

import random
import sys

EVENTS, USERS, PAGES = 157_474, 8_227, 1_000


def rows(events=EVENTS):
    draw, now = random.Random(1), 0
    for _ in range(events):
        now += draw.randrange(35)
        yield int(USERS * draw.random() ** 3), USERS + int(PAGES * draw.random() ** 3), now


def main(path, events=EVENTS):
    with open(path, "w", encoding="utf-8") as file:
        file.write("src,dst,ts\n")
        file.writelines(f"{src},{dst},{time}\n" for src, dst, time in rows(int(events)))


if __name__ == "__main__":
    main(*sys.argv[1:])
