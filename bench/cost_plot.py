#!/usr/bin/env python3
"""Draws what an event costs the policy against the number of clients, from policy_step_bench's results.

    bench/cost_plot.py                       bench/results/policy-step-curve-measured.json -> docs/policy-cost.svg
    bench/cost_plot.py RESULTS.json OUT.svg

Both axes are logarithmic. Up to 2,000 clients are on one GPU; more are spread over 64, and those of gangs over 8 or 64
(hollow marks, dashed lines).
The grey line is n log n through the first point of the shape that is cheapest there: the cost of a step that looks at all
clients and sorts them. Nothing but the standard library is used.
"""
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 30, 55
CLIENTS = (10, 10_000)
COST_US = (0.1, 10_000)
ONE_GPU_MOST = 2000  # kClientsPerGpu of policy_step_bench.cc
COLOURS = {
    "running": "#1b7837",
    "waiting": "#2166ac",
    "limited": "#b2182b",
    "gangs": "#e08214",
    "queued": "#762a83",
    "rotating": "#35978f",
    "tied": "#666666",
}
OF_GANGS = ("gangs", "queued", "rotating", "tied")
NAME_HEIGHT = 12  # of a curve, so far from the next one's


def at(clients, cost_us):
    """Where a point lies in the picture."""

    def part(value, bounds):
        return math.log(value / bounds[0]) / math.log(bounds[1] / bounds[0])

    x = LEFT + part(clients, CLIENTS) * (WIDTH - LEFT - RIGHT)
    y = HEIGHT - BOTTOM - part(cost_us, COST_US) * (HEIGHT - TOP - BOTTOM)
    return round(x, 1), round(y, 1)


def text(x, y, words, anchor="middle", colour="#333"):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def line(points, colour, style=""):
    return f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" fill="none" stroke="{colour}" {style}/>'


def decades(bounds):
    first, last = (round(math.log10(bound)) for bound in bounds)
    return [10.0**power for power in range(first, last + 1)]


def axes():
    left, bottom = at(CLIENTS[0], COST_US[0])
    right, top = at(CLIENTS[1], COST_US[1])
    yield f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="#999"/>'
    for clients in decades(CLIENTS):
        x, _ = at(clients, COST_US[0])
        yield line([(x, top), (x, bottom)], "#ddd")
        yield text(x, bottom + 18, f"{clients:,.0f}")
    for cost in decades(COST_US):
        _, y = at(CLIENTS[0], cost)
        yield line([(left, y), (right, y)], "#ddd")
        yield text(left - 8, y + 4, f"{cost:,.0f}" if cost >= 1 else f"{cost:g}", "end")
    yield text((left + right) / 2, HEIGHT - 12, "clients (up to 2,000 on one GPU, more on 64; of gangs on 8, tied: on 64)")
    yield f'<text transform="translate(16 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle" fill="#333">microseconds for an event</text>'


def curve(shape, points):
    colour = COLOURS[shape]
    most = 0 if shape in OF_GANGS else ONE_GPU_MOST
    one = [at(*point) for point in points if point[0] <= most]
    many = [at(*point) for point in points if point[0] > most]
    yield line(one, colour, 'stroke-width="2"')
    if len(many) > 1:
        yield line(many, colour, 'stroke-width="2" stroke-dasharray="5 4"')
    for x, y in one:
        yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
    for x, y in many:
        yield f'<circle cx="{x}" cy="{y}" r="3" fill="#fff" stroke="{colour}"/>'


def names(shapes):
    """Each curve's name at its end; those that would cover each other stand as far apart as they have to, about where their curves end."""
    groups = []  # of names in a row: [where the first one stands, names]
    for y, x, shape in sorted((at(*max(points))[::-1] + (shape,) for shape, points in shapes.items())):
        groups.append([y, [(y, x, shape)]])
        while len(groups) > 1 and groups[-1][0] < groups[-2][0] + NAME_HEIGHT * len(groups[-2][1]):
            together = groups[-2][1] + groups.pop()[1]
            middle = sum(y - NAME_HEIGHT * place for place, (y, _, _) in enumerate(together)) / len(together)
            groups[-1] = [middle, together]
    for first, group in groups:
        for place, (_, x, shape) in enumerate(group):
            yield text(x + 8, round(first + NAME_HEIGHT * place + 4, 1), shape, "start", COLOURS[shape])


def reference(cost_of_first):
    def cost(clients):
        return cost_of_first * clients * math.log(clients) / (CLIENTS[0] * math.log(CLIENTS[0]))

    points = [10 ** (1 + step / 20) for step in range(61)]
    inside = [at(clients, cost(clients)) for clients in points if cost(clients) <= COST_US[1]]
    yield line(inside, "#999", 'stroke-dasharray="2 3"')
    x, y = inside[-1]
    yield text(x + 8, y + 12, "n log n", "start", "#999")


def draw(rows):
    shapes = {}
    for row in rows:
        cost = row["us_per_event"]
        if not CLIENTS[0] <= row["clients"] <= CLIENTS[1] or not COST_US[0] <= cost <= COST_US[1]:
            raise SystemExit(f"{row['shape']}, {row['clients']} clients, {cost} us: outside the picture's axes")
        shapes.setdefault(row["shape"], []).append((row["clients"], cost))
    unknown = set(shapes) - set(COLOURS)
    if unknown or not shapes:
        raise SystemExit(f"shapes {sorted(unknown)} are not among {sorted(COLOURS)}" if unknown else "there are no rows")
    firsts = [cost for points in shapes.values() for clients, cost in points if clients == CLIENTS[0]]
    if not firsts:
        raise SystemExit(f"no row has {CLIENTS[0]} clients: the line of n log n begins there")
    parts = [*axes(), *reference(min(firsts))]
    for shape, points in shapes.items():
        parts += curve(shape, sorted(points))
    parts += names(shapes)
    body = "\n".join(parts)
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (0, 2) or any(word.startswith("-") for word in arguments):
        raise SystemExit(__doc__)
    source, target = arguments or (ROOT / "bench/results/policy-step-curve-measured.json", ROOT / "docs/policy-cost.svg")
    rows = json.loads(pathlib.Path(source).read_text(encoding="utf-8"))["rows"]
    pathlib.Path(target).write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
