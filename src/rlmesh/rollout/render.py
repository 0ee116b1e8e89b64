"""Chat to tokens and back, by the model's own template.

Token in, token out: what the policy sampled stays as it was sampled. The prompt of a later turn is the tokens before
it, unchanged, with the template's own text between two turns appended.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from rlmesh.errors import RecipeError
from rlmesh.imports import described
from rlmesh.models.folder import eos_token_ids

# Stands for an answer while the template is asked what it writes after one; any text that no template contains will do.
_ANSWER = "\x02answer\x03"
_CACHED_PROMPTS = 4096


class Renderer:
    """Renders observations to prompt tokens and sampled tokens to text.

    >>> renderer = Renderer("runs/blackjack/model")              # doctest: +SKIP
    >>> prompt = renderer.first_prompt("You have 14 (hard). Dealer shows 10. Hit or stand?")
    >>> renderer.text([hit, eos])
    'hit'
    """

    def __init__(self, model_path: str | Path, system_prompt: str = ""):
        # Imported here: transformers takes seconds, and only a process that renders should pay for it.
        from transformers import AutoTokenizer

        self._model_path = model_path
        self.tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
        if self.tokenizer.chat_template is None:
            raise RecipeError(
                f"model.source: the tokenizer in {model_path} has no chat template, which prompts are made with"
            )
        self.eos_token_ids = eos_token_ids(model_path)
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        # The episodes of a group begin with the same text, and many environments show few different ones.
        self._first_prompt = lru_cache(_CACHED_PROMPTS)(self._encode_first_prompt)

    def first_prompt(self, observation: str) -> list[int]:
        """Tokens of a conversation that begins with `observation`, up to where the answer begins."""
        return list(self._first_prompt(observation))

    def _encode_first_prompt(self, observation: str) -> tuple[int, ...]:
        return tuple(self._encode(self._render([{"role": "user", "content": observation}])))

    def next_prompt(self, prompt: list[int], completion: list[int], observation: str) -> list[int]:
        """Tokens after an answered turn: `prompt + completion`, then what the template writes up to the next answer."""
        conversation = [
            {"role": "user", "content": observation},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": observation},
        ]
        between = self._render(conversation).rsplit(_ANSWER, 1)[1]
        if completion and completion[-1] in self.eos_token_ids:
            # The sampled end of sequence is the template's own end of turn: do not write it twice.
            between = between.removeprefix(self.tokenizer.decode([completion[-1]]))
        return prompt + completion + self._encode(between)

    def answer(self, text: str) -> list[int]:
        """Tokens of a whole answer, with the end of sequence that finishes it."""
        return [*self._encode(text), self.tokenizer.eos_token_id]

    def text(self, tokens: list[int]) -> str:
        """Text of a completion, without the end of sequence; other special tokens stay visible."""
        if tokens and tokens[-1] in self.eos_token_ids:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                self._system + messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise RecipeError(f"model.source: the chat template of {self._model_path}: {described(error)}") from error

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)
