import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlmesh.models.config import TinyModelConfig
from rlmesh.models.tiny import build_tiny_model
from rlmesh.rollout.render import Renderer

WORDS = ["You", "have", "14", "(hard).", "hit", "stand"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build_tiny_model(TinyModelConfig(words=WORDS), 64, path, seed=0)
    return path


def test_words_are_one_token_and_other_text_is_spelled(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer.encode("You have 14 (hard). hit", add_special_tokens=False)) == 5
    assert len(tokenizer.encode("hits", add_special_tokens=False)) == 2
    assert tokenizer.unk_token_id not in tokenizer.encode(string.printable.strip(), add_special_tokens=False)


@pytest.mark.parametrize(
    "text", ["hit", "You have 14 (hard).", "I would hit! (really)", "a\nb", "x  y", "stand hit stand"]
)
def test_decoding_gives_the_text_back(folder, text):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


_PIECES = st.one_of(st.sampled_from([*WORDS, " ", "\n"]), st.sampled_from(string.printable[:95]))


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, min_size=1, max_size=12).map("".join))
def test_decoding_gives_any_printable_text_back(folder, text):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_an_answer_is_its_word_and_the_end_of_sequence(folder):
    renderer = Renderer(folder)
    hit = renderer.answer("hit")
    assert len(hit) == 2
    assert hit[-1] in renderer.eos_token_ids
    assert renderer.text(hit) == "hit"


def test_the_seed_decides_the_weights(folder, tmp_path):
    build_tiny_model(TinyModelConfig(words=WORDS), 64, tmp_path / "same", seed=0)
    build_tiny_model(TinyModelConfig(words=WORDS), 64, tmp_path / "other", seed=1)
    ids = torch.tensor([[5, 6, 7]])
    first, same, other = (
        AutoModelForCausalLM.from_pretrained(p)(ids).logits for p in (folder, tmp_path / "same", tmp_path / "other")
    )
    assert torch.equal(first, same)
    assert not torch.allclose(first, other)


def test_the_template_adds_nothing_but_the_end_of_an_answer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "You have 14"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "You have 14"
    chat = [{"role": "user", "content": "You have 14"}, {"role": "assistant", "content": " hit"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "You have 14 hit<eos>"
