"""Exact values of BlackJack policies by dynamic programming: no games are played, so there is no noise.

A policy sees a `View`: its total, whether it is soft, and the dealer's card; there are 280 of them, in the order of
`VIEWS`. What the rules depend on is the hand behind the view: with the infinite deck its sum, its aces and whether it is
a natural; with `single_deck` its cards, because they are missing from the deck. A policy's value is exact for both.

Shapes: V views, H hands, D = 10 dealer's cards, C = 10 cards to draw.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from blackjack_env.rules import INVALID_REWARD, RULES, Rules, check_rules, is_natural
from blackjack_env.text import observation_text

_COUNTS_C = np.array([4] * 9 + [16])
_BUST = 22  # stands for every total above 21


class View(NamedTuple):
    """What a policy sees when it decides; `dealer` is 1 for an ace."""

    total: int
    soft: bool
    dealer: int

    @property
    def text(self) -> str:
        return observation_text(*self)


VIEWS: tuple[View, ...] = tuple(
    View(total, soft, dealer)
    for soft, lowest in ((False, 4), (True, 12))
    for total in range(lowest, 22)
    for dealer in range(1, 11)
)
VIEW_INDEX = {view: i for i, view in enumerate(VIEWS)}


def hit_below(total: int) -> np.ndarray:
    """P(hit) [V] of the policy that hits below a total; 4 always stands, 22 always hits.

    >>> round(solver("gym_sab").value(hit_below(17)), 4)
    -0.0759
    """
    return np.array([float(view.total < total) for view in VIEWS])


class _Hand(NamedTuple):
    """A hand as the rules see it. `cards` counts each value; with the infinite deck it stays empty."""

    sum: int
    ace: bool
    natural: bool
    cards: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.sum + 10 * self.soft

    @property
    def soft(self) -> bool:
        return self.ace and self.sum <= 11


def _hand(cards: list[int], single_deck: bool) -> _Hand:
    counts = tuple(cards.count(c) for c in range(1, 11)) if single_deck else ()
    return _Hand(sum(cards), 1 in cards, is_natural(cards), counts)


def _extend(hand: _Hand, card: int) -> _Hand:
    counts = tuple(n + (i + 1 == card) for i, n in enumerate(hand.cards))
    return _Hand(hand.sum + card, hand.ace or card == 1, False, counts)


def _possible(hand: _Hand) -> bool:
    return hand.sum <= 21 and all(n <= limit for n, limit in zip(hand.cards, _COUNTS_C, strict=False))


def _dealer_plays(shown: int) -> list[tuple[tuple[int, ...], int, int]]:
    """Every set of cards that ends the dealer's play: (count of each value drawn, orders that lead there, total)."""
    ended: dict[tuple[tuple[int, ...], int], int] = {}
    frontier = {(0,) * 10: 1}
    while frontier:
        drawn_further: dict[tuple[int, ...], int] = {}
        for drawn, orders in frontier.items():
            for card in range(1, 11):
                cards = tuple(n + (i + 1 == card) for i, n in enumerate(drawn))
                total = shown + sum(n * (i + 1) for i, n in enumerate(cards))
                if (shown == 1 or cards[0]) and total <= 11:
                    total += 10
                if total < 17:
                    drawn_further[cards] = drawn_further.get(cards, 0) + orders
                else:
                    end = (cards, min(total, _BUST))
                    ended[end] = ended.get(end, 0) + orders
        frontier = drawn_further
    return [(cards, orders, total) for (cards, total), orders in ended.items()]


class Solver:
    """Values under one set of rules; get it from `solver(rules)`, which keeps it.

    `value` is exact for any policy that depends on the view. `optimal_V` is the best such policy. `action_values` are
    those of best play by someone who sees the cards; only under `single_deck` is that more than the view tells.
    """

    def __init__(self, rules: Rules):
        check_rules(rules)
        self.rules = rules
        self._single_deck = rules == "single_deck"
        self._build_hands()
        self._build_stand_values()
        self._best_HD = self._solve_by_cards()
        self.optimal_by_cards_value = float((self._deal_HD * self._best_HD[:-1]).sum())
        self.optimal_V = self._solve_by_view()
        self.optimal_value = self.value(self.optimal_V)

    def _build_hands(self) -> None:
        """Hands by rising sum, what each draw makes of them, and the chances of draws and deals."""
        dealt = {_hand([a, b], self._single_deck) for a in range(1, 11) for b in range(1, 11)}
        hands, frontier = set(dealt), dealt
        while frontier:
            frontier = {h for hand in frontier for c in range(1, 11) if _possible(h := _extend(hand, c))} - hands
            hands |= frontier
        self._hands = sorted(hands)
        self._index = {hand: i for i, hand in enumerate(self._hands)}
        num_hands = len(self._hands)
        self._next_HC = np.array(
            [[self._index.get(_extend(hand, c), num_hands) for c in range(1, 11)] for hand in self._hands]
        )
        sums = np.array([hand.sum for hand in self._hands])
        self._levels = [np.flatnonzero(sums == s) for s in range(sums.max(), sums.min() - 1, -1)]
        views = [[VIEW_INDEX[View(h.total, h.soft, d)] for d in range(1, 11)] for h in self._hands]
        self._view_HD = np.array(views)
        if self._single_deck:
            held_HDC = np.array([h.cards for h in self._hands])[:, None] + np.eye(10, dtype=int)
            self._left_HDC = np.maximum(_COUNTS_C - held_HDC, 0)
        else:
            self._left_HDC = np.broadcast_to(_COUNTS_C, (num_hands, 10, 10))
        self._draw_HDC = self._left_HDC / self._left_HDC.sum(-1, keepdims=True)
        self._deal_HD = np.zeros((num_hands, 10))
        for cards in np.ndindex(10, 10, 10):
            left, chance = _COUNTS_C.copy(), 1.0
            for card in cards:
                chance *= left[card] / left.sum()
                left[card] -= self._single_deck
            hand = _hand([cards[0] + 1, cards[1] + 1], self._single_deck)
            self._deal_HD[self._index[hand], cards[2]] += chance

    def _build_stand_values(self) -> None:
        totals = np.array([hand.total for hand in self._hands])
        natural = np.array([hand.natural for hand in self._hands])
        self._stand_HD = np.empty((len(self._hands), 10))
        for d in range(10):
            chance_of = {total: np.zeros(len(self._hands)) for total in range(17, _BUST + 1)}
            for cards, orders, total in _dealer_plays(d + 1):
                chance_of[total] += orders * self._chance_of_drawing(cards, d)
            win = chance_of[_BUST] + sum(p * (totals > t) for t, p in chance_of.items() if t != _BUST)
            lose = sum(p * (totals < t) for t, p in chance_of.items() if t != _BUST)
            value = win - lose
            if self.rules == "gym_sab":
                dealer_natural = self._draw_HDC[:, d, {0: 9, 9: 0}[d]] if d in (0, 9) else 0.0
                value = np.where(natural, 1 - dealer_natural, value)
            elif self.rules == "gym_natural":
                value = np.where(natural, 1.5 * win, value)
            self._stand_HD[:, d] = value

    def _chance_of_drawing(self, cards: tuple[int, ...], d: int) -> np.ndarray:
        """Chance [H] to draw these cards in one given order, after each hand and the dealer's shown card."""
        chance = np.ones(len(self._hands))
        left_HC, drawn = self._left_HDC[:, d], 0
        size = left_HC.sum(-1)
        for card, count in enumerate(cards):
            for i in range(count):
                taken, gone = (i, drawn) if self._single_deck else (0, 0)
                chance *= np.maximum(left_HC[:, card] - taken, 0) / (size - gone)
                drawn += 1
        return chance

    def _hit_value(self, level: np.ndarray, value_HD: np.ndarray) -> np.ndarray:
        """Value of hitting for the hands of a level [*, D]; the last row of `value_HD` is the bust."""
        return np.einsum("hdc,hcd->hd", self._draw_HDC[level], value_HD[self._next_HC[level]])

    def _value_HD(self, p_hit_V: np.ndarray, p_stand_V: np.ndarray) -> np.ndarray:
        """Value [H + 1, D] of every hand under a policy; what is left of the two chances is an invalid answer."""
        hit_HD, stand_HD = p_hit_V[self._view_HD], p_stand_V[self._view_HD]
        value_HD = np.full((len(self._hands) + 1, 10), -1.0)
        for level in self._levels:
            hit, stand = hit_HD[level], stand_HD[level]
            value_HD[level] = (
                hit * self._hit_value(level, value_HD)
                + stand * self._stand_HD[level]
                + (1 - hit - stand) * INVALID_REWARD
            )
        return value_HD

    def value(self, p_hit_V: np.ndarray, p_stand_V: np.ndarray | None = None) -> float:
        """Mean return of a policy: P(hit) and P(stand) for every view, the rest of 1 being an invalid answer."""
        p_hit_V = np.asarray(p_hit_V, dtype=np.float64)
        p_stand_V = 1 - p_hit_V if p_stand_V is None else np.asarray(p_stand_V, dtype=np.float64)
        return float((self._deal_HD * self._value_HD(p_hit_V, p_stand_V)[:-1]).sum())

    def action_values(self, player: list[int], dealer: int) -> dict[str, float]:
        """Values of hit and stand now, with best play afterwards."""
        h, d = self._index[_hand(player, self._single_deck)], dealer - 1
        hit = self._draw_HDC[h, d] @ self._best_HD[self._next_HC[h], d]
        return {"hit": float(hit), "stand": float(self._stand_HD[h, d])}

    def _solve_by_cards(self) -> np.ndarray:
        """Value [H + 1, D] of every hand under best play that sees the cards."""
        value_HD = np.full((len(self._hands) + 1, 10), -1.0)
        for level in self._levels:
            value_HD[level] = np.maximum(self._hit_value(level, value_HD), self._stand_HD[level])
        return value_HD

    def _reach_HD(self, p_hit_V: np.ndarray) -> np.ndarray:
        """Chance of each hand to be met under a policy."""
        reach_HD = np.vstack([self._deal_HD, np.zeros((1, 10))])
        for level in reversed(self._levels):
            moved_HDC = (reach_HD[level] * p_hit_V[self._view_HD[level]])[..., None] * self._draw_HDC[level]
            np.add.at(reach_HD, self._next_HC[level], moved_HDC.swapaxes(1, 2))
        return reach_HD[:-1]

    def _solve_by_view(self) -> np.ndarray:
        """P(hit) [V], 0 or 1, of the best policy that sees the view.

        Under the infinite deck one pass is exact. Under `single_deck` a view stands for several hands, whose odds depend
        on the policy itself: improve it until it stays. A little random play keeps every view in reach.
        """
        policy_V = np.full(len(VIEWS), 0.5)
        value_HD = self._best_HD
        while True:
            weight_HD = self._reach_HD(0.999 * policy_V + 0.0005)
            gain_HD = self._hit_value(np.arange(len(self._hands)), value_HD) - self._stand_HD
            gain_V = np.bincount(self._view_HD.ravel(), (weight_HD * gain_HD).ravel(), len(VIEWS))
            improved_V = (gain_V > 0).astype(np.float64)
            if (improved_V == policy_V).all():
                return policy_V
            policy_V = improved_V
            value_HD = self._value_HD(policy_V, 1 - policy_V)


@lru_cache(maxsize=len(RULES))
def solver(rules: Rules) -> Solver:
    """The solver of a set of rules, made once (single_deck takes a second, the others milliseconds)."""
    return Solver(rules)
