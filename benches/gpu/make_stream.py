"""Makes up a stream in the shape of Wikipedia's edits, where that event file was not carried: as many events, users and
pages, a few of which take part in most of them, numbered as they are there.

    make_stream.py FILE.csv
"""

import random
import sys

EVENTS, USERS, PAGES = 157_474, 8_227, 1_000


def rows():
    draw, now = random.Random(1), 0
    for _ in range(EVENTS):
        now += draw.randrange(35)
        yield int(USERS * draw.random() ** 3), USERS + int(PAGES * draw.random() ** 3), now


def main(path):
    with open(path, "w", encoding="utf-8") as file:
        file.write("src,dst,ts\n")
        file.writelines(f"{src},{dst},{time}\n" for src, dst, time in rows())


if __name__ == "__main__":
    main(sys.argv[1])
