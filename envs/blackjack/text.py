"""What the model reads, and how its answer is understood."""

from __future__ import annotations

import re

ANSWERS = ("hit", "stand")
# Longer lines cannot be an answer; the limit also bounds the work of the expressions below.
_LONGEST_ANSWER_LINE = 80
_ANSWER = re.compile(r"[\W_]*(?:answer[*_`\s]*:[\W_]*)?(hit|stand)[\W_]*")


def observation_text(total: int, soft: bool, dealer: int) -> str:
    """The text of a decision.

    >>> observation_text(14, False, 10)
    'You have 14 (hard). Dealer shows 10. Hit or stand?'
    """
    shown = "ace" if dealer == 1 else dealer
    return f"You have {total} ({'soft' if soft else 'hard'}). Dealer shows {shown}. Hit or stand?"


def parse_answer(text: str) -> str | None:
    """The final answer in a text, `hit` or `stand`, or None when it is neither.

    The last line that is not blank must be exactly the answer, in any case, optionally after `answer:` and inside
    markdown or punctuation. A line that merely contains the word is no answer.

    >>> parse_answer("Sixteen is weak.\\n**Answer:** Hit."), parse_answer("I would hit"), parse_answer("stand hit")
    ('hit', None, None)
    """
    line = text.rstrip().rpartition("\n")[2].strip()
    if len(line) > _LONGEST_ANSWER_LINE:
        return None
    match = _ANSWER.fullmatch(line.casefold())
    return match and match[1]
