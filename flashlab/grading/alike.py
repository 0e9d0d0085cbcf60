"""How alike two solutions are: a number to look at, never a verdict. What the stub gave everyone does not count.

The measure is the share of five-token runs that two cells have in common (Jaccard), names as they are, comments and
layout left out. Short exercises have few ways to be written, so honest solutions of e04 share a third of theirs.
"""

from __future__ import annotations

import io
import tokenize
from itertools import combinations

RUN = 5
IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def runs(source: str) -> frozenset[tuple[str, ...]]:
    """Every run of five tokens in the source; of text that is no Python, of what can be read."""
    tokens = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in IGNORED:
                tokens.append(token.string)
    except (tokenize.TokenError, SyntaxError, ValueError):  # ValueError: half a surrogate pair
        pass
    return frozenset(zip(*(tokens[first:] for first in range(RUN))))


def share(left: frozenset, right: frozenset) -> float:
    """What part of all their runs two sources have in common.

    >>> share(runs("a = b + c * d"), runs("a = b + c * e"))
    0.5
    """
    return len(left & right) / len(left | right) if left | right else 0.0


def most_alike(sources: dict[str, str], given: str, library: dict[str, str], most: int = 10) -> list[tuple[float, str, str]]:
    """The pairs that share most, students with each other and with the library's files: (share, one, other)."""
    stub = runs(given)
    theirs = {name: runs(source) - stub for name, source in sources.items()}
    ours = {name: runs(source) for name, source in library.items()}
    pairs = [(share(theirs[one], theirs[other]), one, other) for one, other in combinations(sorted(theirs), 2)]
    pairs += [(len(theirs[one] & text) / max(1, len(theirs[one])), one, name) for one in sorted(theirs) for name, text in ours.items()]
    return [(round(amount, 2), one, other) for amount, one, other in sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))[:most] if amount > 0]
