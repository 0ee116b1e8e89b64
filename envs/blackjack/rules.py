"""BlackJack with two actions, hit and stand: the hands, the deal, and what a finished game pays.

A card is its value: 1 for an ace, 2 to 9, and 10 for ten, jack, queen and king. The dealer stands on every 17.

Source: Sutton and Barto, Reinforcement Learning, example 5.1; Gymnasium's `Blackjack-v1`; OpenSpiel's `blackjack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, get_args

Rules = Literal["gym_sab", "gym_natural", "no_bonus", "single_deck"]
RULES: tuple[str, ...] = get_args(Rules)
DECK = tuple(card for card in range(1, 10) for _ in range(4)) + (10,) * 16
INVALID_REWARD = -1.0


def check_rules(rules: str) -> None:
    """Raises: ValueError that names the rules there are."""
    if rules not in RULES:
        raise ValueError(f"rules '{rules}' are unknown; choose one of {', '.join(RULES)}")


def total_of(hand: Sequence[int]) -> tuple[int, bool]:
    """Total of a hand and whether it is soft, which is that an ace counts 11.

    >>> total_of([1, 6]), total_of([1, 6, 10])
    ((17, True), (17, False))
    """
    total = sum(hand)
    soft = 1 in hand and total <= 11
    return total + 10 * soft, soft


def is_natural(hand: Sequence[int]) -> bool:
    """An ace and a ten as dealt."""
    return len(hand) == 2 and 1 in hand and 10 in hand


def payout(rules: Rules, player: Sequence[int], dealer: Sequence[int]) -> float:
    """Return of a game in which the player stood with at most 21 and the dealer has played."""
    mine, theirs = total_of(player)[0], total_of(dealer)[0]
    result = 1.0 if theirs > 21 else float(mine > theirs) - float(mine < theirs)
    if is_natural(player):
        if rules == "gym_sab" and not is_natural(dealer):
            return 1.0
        if rules == "gym_natural" and result == 1.0:
            return 1.5
    return result


class Game:
    """One game. `deal_seed` fixes the player's two cards and the dealer's shown card, `seed` every hidden card.

    The infinite deck draws with replacement; `single_deck` draws from 52 cards without.

    >>> game = Game("gym_sab", seed=1, deal_seed=7)
    >>> game.player == Game("gym_sab", seed=2, deal_seed=7).player
    True
    """

    def __init__(self, rules: Rules, seed: int | None = None, deal_seed: int | None = None):
        check_rules(rules)
        self.rules = rules
        self._cards = list(DECK)
        # The prefixes keep the two streams apart when both seeds are the same number.
        deal_seed = seed if deal_seed is None else deal_seed
        deal = Random(None if deal_seed is None else f"deal/{deal_seed}")
        self._hidden = Random(None if seed is None else f"hidden/{seed}")
        self.player = [self._draw(deal), self._draw(deal)]
        self.dealer = [self._draw(deal)]
        self.dealer.append(self._draw(self._hidden))

    def _draw(self, rng: Random) -> int:
        i = int(rng.random() * len(self._cards))
        return self._cards.pop(i) if self.rules == "single_deck" else self._cards[i]

    @property
    def busted(self) -> bool:
        return sum(self.player) > 21

    def hit(self) -> float | None:
        """Draw a card: -1 when the player busts, None when the game goes on."""
        self.player.append(self._draw(self._hidden))
        return -1.0 if self.busted else None

    def stand(self) -> float:
        """Let the dealer play; the game's return."""
        while total_of(self.dealer)[0] < 17:
            self.dealer.append(self._draw(self._hidden))
        return payout(self.rules, self.player, self.dealer)
