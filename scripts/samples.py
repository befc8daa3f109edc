"""Compares a sample of a page with what the command prints: words and structure, whatever the figures.

python3 scripts/samples.py PAGE COMMAND OUTPUT: the `text` block of PAGE that begins with `$ COMMAND`, and the file OUTPUT.

Blocks between blank lines have the same lines in any order (stages are sorted by their time) and follow one another as in the
sample. Where the sample has `...`, the output may have more. Prose is compared by sentences and clauses, as it is wrapped to the
width of a terminal. Names of policies and the mark of a run whose sends were late count as
figures: they differ from run to run.
"""

import re
import sys

POLICY = r"\b(routing_policy=)?(cache_aware|round_robin|shortest_queue|power_of_two|random)\b"


def shape(text):
    text = re.sub(r"[█░]+", " ", text)
    text = re.sub(POLICY, "POLICY", text)
    text = re.sub(r"POLICY((,| and) POLICY)*", "POLICY", text)
    text = re.sub(r"[,;] (not )?shown against POLICY", "", text)
    text = re.sub(r"20\d{6}T\d{6}Z", "#", text)
    text = re.sub(r"[-+±]?(?<![\w.])\d[\d.,]*\d|(?<![\w.])\d", "#", text)
    text = re.sub(r":#", ":#", text)
    text = re.sub(r"# ?(µs|ms|s)\b", "#", text)
    text = re.sub(r"± #", "", text)
    text = text.replace("within the clock error", "# # %")
    text = re.sub(r" - ", " # ", text + " ").replace("[DEGRADED]", "").replace(" DEGRADED ", " ")
    return " ".join(text.split())


def units(block):
    """Lines of tables and names of files, and clauses of prose."""
    found, prose = [], []
    for line in block:
        if re.search(r"\S {2,}\S|^\w+: \S+$", re.sub(r"[█░]+", "", line).rstrip()):
            found.append(shape(line))
        else:
            prose.append(line.strip())
    text = shape(" ".join(prose)).replace(" was spent", "")
    found += re.split(r"(?<=[.:;,]) ", text) if text else []
    return {unit.strip(" .,;") for unit in found}


def blocks(lines):
    """Blocks, each with whether there may be more in it than the sample has; `...` ends a block."""
    found, block, more = [], [], False
    for line in [*lines, ""]:
        if line.strip() not in ("", "..."):
            block.append(line)
            continue
        cut = line.strip() == "..."
        if block:
            found.append((block, more or cut))
            block = []
        more = cut
    return found


def differences(sample, more, printed):
    """Lines that the sample alone has, and those that the output alone has. Short stages come and go."""
    short = re.compile(r"[\w…+ ]+ # # %|(# % )?(in|waiting|somewhere|inside) .*")
    old = sample - printed
    new = set() if more else {unit for unit in printed - sample if not short.fullmatch(unit)}
    return old, new


def main(page, command, output):
    samples = re.findall(r"^```text\n\$ ([^\n]*)\n(.*?)^```", open(page).read(), re.M | re.S)
    sample = blocks(next(text for first, text in samples if first.startswith(command)).splitlines())
    assert sample, "an empty sample"
    printed = [units(block) for block, _ in blocks(open(output).read().splitlines())]
    for block, more in sample:
        wanted = units(block)
        # Without `...` the next block follows at once, behind the rest of one of which the sample has a part.
        found = [differences(wanted, more, there) for there in (printed if more else printed[:2])]
        at = next((at for at, (old, new) in enumerate(found) if not old and not new), None)
        if at is None:
            old, new = min(found, key=lambda both: len(both[0]) + len(both[1]), default=(wanted, set()))
            print(f"error: {page}: the sample of `{command}` differs from what the command prints", file=sys.stderr)
            for of, lines in ("sample", old), ("output", new):
                print(*(f"  {of}: {line}" for line in sorted(lines)), sep="\n", file=sys.stderr)
            sys.exit(1)
        printed = printed[at + (0 if more else 1) :]
    print(f"{page}: `{command}` prints what its sample has")


main(*sys.argv[1:])
