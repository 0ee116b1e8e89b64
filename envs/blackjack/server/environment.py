"""The BlackJack environment: one game an episode, one answer a step."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from blackjack_env.models import BlackjackAction, BlackjackObservation, BlackjackState
from blackjack_env.rules import INVALID_REWARD, Game, total_of
from blackjack_env.solver import solver
from blackjack_env.text import observation_text, parse_answer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata


class BlackjackEnvironment(Environment[BlackjackAction, BlackjackObservation, BlackjackState]):
    """A game of BlackJack in text.

    An answer that is neither `hit` nor `stand` ends the episode with reward -1 and `invalid_action` in the metadata: it
    is the model's doing and scored, not a protocol error. A step before the first reset, or after the end, is refused.

    >>> env = BlackjackEnvironment()
    >>> env.reset(seed=1, deal_seed=0).text
    'You have 16 (hard). Dealer shows 5. Hit or stand?'
    >>> env.step(BlackjackAction(text="stand")).done
    True
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._game: Game | None = None
        self._state = BlackjackState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        deal_seed: int | None = None,
        rules: str = "gym_sab",
        **unknown: Any,
    ) -> BlackjackObservation:
        """Deal. `deal_seed` fixes the player's cards and the dealer's shown one (default: `seed`), `seed` all others."""
        if unknown:
            names = ", ".join(f"'{name}'" for name in sorted(unknown))
            raise ValueError(f"reset does not know {names}; it takes seed, deal_seed, rules and episode_id")
        for name, value in (("seed", seed), ("deal_seed", deal_seed)):
            if value is not None and type(value) is not int:
                raise ValueError(f"{name} must be a whole number or null, not {value!r}")
        self._game = Game(rules, seed, deal_seed)
        self._solver = solver(rules)
        self._regret = 0.0
        self._state = BlackjackState(episode_id=episode_id or uuid4().hex, rules=rules)
        return self._decision(reward=None)

    def step(self, action: BlackjackAction, **unknown: Any) -> BlackjackObservation:
        """Play one answer."""
        if unknown:
            raise ValueError(f"step does not know {', '.join(sorted(unknown))}")
        if self._game is None or self._state.done:
            raise RuntimeError("the episode is over: reset first" if self._game else "no episode yet: reset first")
        game, answer = self._game, parse_answer(action.text)
        self._state.step_count += 1
        values = self._solver.action_values(game.player, game.dealer[0])
        self._regret += max(values.values()) - (INVALID_REWARD if answer is None else values[answer])
        if answer is None:
            return self._end("Invalid answer. You lose.", INVALID_REWARD, invalid_action=True)
        if answer == "stand":
            reward = game.stand()
            theirs = total_of(game.dealer)[0]
            verdict = "You win." if reward > 0 else "You lose." if reward < 0 else "A draw."
            return self._end(f"Dealer has {theirs}. {verdict}", reward)
        reward = game.hit()
        if reward is None:
            return self._decision(reward=0.0)
        return self._end(f"You have {sum(game.player)}. You lose.", reward)

    # OpenEnv runs asynchronous methods on the event loop; the synchronous ones would each cost a hop to a thread.
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **args: Any):
        return self.reset(seed, episode_id, **args)

    async def step_async(self, action: BlackjackAction, **args: Any):
        return self.step(action, **args)

    @property
    def state(self) -> BlackjackState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="blackjack",
            description="BlackJack for language models: hit or stand, text in, text out",
            version="0.1.0",
        )

    def _decision(self, reward: float | None) -> BlackjackObservation:
        game = self._game
        total, soft = total_of(game.player)
        values = self._solver.action_values(game.player, game.dealer[0])
        return BlackjackObservation(
            text=observation_text(total, soft, game.dealer[0]),
            reward=reward,
            metadata=self._metadata(optimal_action=max(values, key=values.get)),
        )

    def _end(self, text: str, reward: float, invalid_action: bool = False) -> BlackjackObservation:
        self._state.done = True
        metadata = self._metadata(optimal_action=None, invalid_action=invalid_action)
        return BlackjackObservation(text=text, reward=reward, done=True, metadata=metadata)

    def _metadata(self, optimal_action: str | None, invalid_action: bool = False) -> dict[str, Any]:
        total, soft = total_of(self._game.player)
        return {
            "episode_id": self._state.episode_id,
            "step": self._state.step_count,
            "total": total,
            "soft": soft,
            "dealer": self._game.dealer[0],
            "optimal_action": optimal_action,
            "regret": self._regret,
            "invalid_action": invalid_action,
        }
