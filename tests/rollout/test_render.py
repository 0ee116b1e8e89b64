import json
import shutil

import pytest

from rlmesh.errors import RecipeError
from rlmesh.rollout.render import Renderer

OBSERVATION = "You have 14 (hard). Dealer shows 10. Hit or stand?"
CHATML = (
    "{% for m in messages %}<bos>{{ m['role'] }}\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def chatml(untied, tmp_path_factory):
    """The tiny model with a template of the kind that Qwen and SmolLM2 have."""
    folder = tmp_path_factory.mktemp("chatml") / "model"
    shutil.copytree(untied, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": CHATML}))
    return folder


@pytest.fixture(params=["untied", "chatml"])
def renderer(request):
    return Renderer(request.getfixturevalue(request.param), system_prompt="You play")


def test_an_answer_is_its_word_and_the_end(untied):
    renderer = Renderer(untied)
    assert len(renderer.first_prompt(OBSERVATION)) == 10
    assert len(renderer.answer("hit")) == 2
    assert renderer.text(renderer.answer("hit")) == "hit"


def test_the_next_prompt_extends_what_was_sampled(renderer):
    prompt = renderer.first_prompt(OBSERVATION)
    for completion in (renderer.answer("hit"), renderer.answer("hit")[:-1], [7, 9, 11]):
        after = renderer.next_prompt(prompt, completion, OBSERVATION)
        assert after[: len(prompt) + len(completion)] == prompt + completion


def test_a_conversation_is_the_template_of_the_whole_of_it(chatml):
    """Turn by turn the tokens are those of the template applied at once, nothing dropped between assistant and user."""
    renderer = Renderer(chatml, system_prompt="You play")
    tokens = renderer.first_prompt("You have 14")
    chat = [{"role": "system", "content": "You play"}, {"role": "user", "content": "You have 14"}]
    for answer, observation in (("hit", "You have 16"), ("stand", "You have 15")):
        tokens = renderer.next_prompt(tokens, renderer.answer(answer), observation)
        chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": observation}]
    whole = renderer.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    # An answer is tokenised as the model samples it, on its own; the text is what must agree.
    assert renderer.tokenizer.decode(tokens).replace(" ", "") == whole.replace(" ", "")


def test_text_hides_the_end_and_nothing_else(untied):
    renderer = Renderer(untied)
    hit, eos = renderer.answer("hit")
    assert renderer.text([hit, 0, eos]) == "hit<pad>"
    assert renderer.text([hit, eos, hit]) == "hit<eos> hit"


def test_every_end_of_sequence_is_known(tied):
    assert Renderer(tied).eos_token_ids == {2, 5}


def test_a_model_without_a_chat_template_names_the_key(untied, tmp_path):
    shutil.copytree(untied, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    content = json.loads(path.read_text())
    del content["chat_template"]
    path.write_text(json.dumps(content))
    with pytest.raises(RecipeError, match=r"model\.source: the tokenizer in .* has no chat template"):
        Renderer(tmp_path / "model")
