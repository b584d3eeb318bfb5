"""Plots as SVG text: one line per operation, one mark per point of it. Needs the standard library."""

import math
from html import escape

LABELS, WIDTH, LINE, TOP, BOTTOM, RIGHT = 170, 640, 26, 56, 44, 24
STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.title{font-size:14px;font-weight:bold}.axis{fill:#57606a}"
    ".grid{stroke:#d0d7de}.limit{stroke:#cf222e;stroke-width:1.5}.line{stroke:#eaeef2}"
    ".forward{fill:#0969da;fill-opacity:.65}.backward{fill:none;stroke:#bf3989;stroke-width:1.4}"
    ".median{stroke:#24292f;stroke-width:2}"
)


class Linear:
    """From 0 to a whole tenth beyond the largest value."""

    def __init__(self, numbers):
        self.end = max(1.0, math.ceil(max(numbers, default=1) * 10) / 10)
        step = 0.2 if self.end <= 2 else math.ceil(self.end / 8)
        self.ticks = [round(step * i, 6) for i in range(int(self.end / step + 1e-9) + 1)]

    def place(self, number):
        return number / self.end

    def label(self, number):
        return f"{100 * number:.0f} %"


class Powers:
    """Logarithmic, whole factors of two around the values and 1."""

    def __init__(self, numbers):
        logs = [math.log2(number) for number in numbers] + [0]
        self.low, self.high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
        step = max(1, math.ceil((self.high - self.low) / 10))
        self.ticks = [2.0**power for power in range(self.low, self.high + 1) if power % step == 0]

    def place(self, number):
        return (math.log2(number) - self.low) / (self.high - self.low)

    def label(self, number):
        return f"{number:g}" if number >= 1 else f"1/{1 / number:g}"


def strips(title, caption, rows, scale, limit=1.0):
    """`rows`: name, direction ("forward", "backward") and number of each mark, in the order of the lines."""
    names = list(dict.fromkeys(name for name, _, _ in rows))
    height = TOP + LINE * len(names) + BOTTOM
    across = lambda number: LABELS + scale.place(number) * WIDTH
    size = f'{LABELS + WIDTH + RIGHT} {height}'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">', f"<style>{STYLE}</style>"]
    out += [f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="#fff"/>']
    out += [text(LABELS, 20, title, "title"), text(LABELS, 38, caption, "axis")]
    base = TOP + LINE * len(names)
    for tick in scale.ticks:
        x = across(tick)
        out += [f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{base}"/>']
        out += [text(x, base + 16, scale.label(tick), "axis", "middle")]
    x = across(limit)
    out += [f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{base}"/>']
    for line, name in enumerate(names):
        middle = TOP + LINE * (line + 0.5)
        out += [f'<line class="line" x1="{LABELS}" x2="{LABELS + WIDTH}" y1="{middle}" y2="{middle}"/>']
        out += [text(LABELS - 8, middle + 4, name, "", "end")]
        for direction, lift in (("forward", -4), ("backward", 4)):
            found = sorted(number for each, to, number in rows if each == name and to == direction)
            y = middle + lift
            out += [f'<circle class="{direction}" cx="{across(number):.1f}" cy="{y}" r="3.2"/>' for number in found]
            if found:
                x = across(found[len(found) // 2])
                out += [f'<line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 5}" y2="{y + 5}"/>']
    y = base + 34
    out += [f'<circle class="forward" cx="{LABELS}" cy="{y - 4}" r="3.2"/>', text(LABELS + 8, y, "forward", "axis")]
    out += [f'<circle class="backward" cx="{LABELS + 70}" cy="{y - 4}" r="3.2"/>']
    out += [text(LABELS + 78, y, "backward; black: the middle one of an operation's points", "axis"), "</svg>"]
    return "\n".join(out) + "\n"


def text(x, y, words, kind, anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
