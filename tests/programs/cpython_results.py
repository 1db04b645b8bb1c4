"""Turns regrtest's JUnit file into sorted lines of "test<TAB>outcome": cpython_results.py FILE"""
import sys
import xml.etree.ElementTree as ElementTree

lines = []
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    outcome = "ok"
    for child in case:
        if child.tag in ("error", "failure", "skipped"):
            outcome = child.tag
    if case.get("result") not in (None, "completed") and outcome == "ok":
        outcome = case.get("result")
    if case.get("status") not in (None, "run"):
        outcome = "skipped"
    lines.append(f"{case.get('name')}\t{outcome}")
print("\n".join(sorted(lines)))
