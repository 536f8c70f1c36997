"""The scheduling modes as src/policy/modes.h has them, for what is not C++: pages and tests."""
import pathlib
import re

BILLED = {"kItsPart": "time / tenants that run", "kAllOfIt": "time, in full"}  # SchedulingMode::Bills; the first is the default
HEADER = pathlib.Path(__file__).resolve().parent.parent / "src/policy/modes.h"


def rows(text=None):
    """[(name, who runs when, what is billed)], in the order of the table."""
    text = HEADER.read_text(encoding="utf-8") if text is None else text
    table = text[text.index("kSchedulingModes[] = {"):]
    table = table[:table.index("\n};")]
    found = []
    for row in re.split(r"\{\.name = ", table)[1:]:
        name, summary = re.match(r'"([^"]+)"', row), re.search(r'\.summary =\s*((?:"[^"]*"\s*)+)', row)
        if not name or not summary:
            raise ValueError(f"{HEADER}: a row without a name or a summary: {row.strip()[:80]}")
        bills = re.search(r"Bills::(\w+)", row)
        bills = bills[1] if bills else next(iter(BILLED))
        if bills not in BILLED:
            raise ValueError(f"{HEADER}: {name[1]} bills {bills}, for which BILLED has no words")
        found.append((name[1], "".join(re.findall(r'"([^"]*)"', summary[1])), BILLED[bills]))
    if not found:
        raise ValueError(f"{HEADER}: no scheduling modes found")
    return found
