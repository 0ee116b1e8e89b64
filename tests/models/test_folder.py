"""What is wrong with a model folder is said before anything is started with it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlmesh.errors import RecipeError
from rlmesh.models.config import ModelConfig
from rlmesh.models.folder import check_folder, eos_token_ids
from rlmesh.models.source import resolve_model
from rlmesh.recipe import load_recipe

ROOT = Path(__file__).parents[2]
QWEN = ROOT / "configs" / "models" / "qwen2.5-1.5b-instruct"


@pytest.fixture
def folder(untied, tmp_path):
    return Path(shutil.copytree(untied, tmp_path / "model"))


def test_a_good_folder_is_taken(folder):
    check_folder(folder)
    assert resolve_model(ModelConfig(source=str(folder)), Path("unused"), seed=0) == folder


def changed(**values):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def without(*patterns):
    def change(folder):
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return change


def without_template(folder):
    without("chat_template.*")(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config))


def half(pattern):
    def change(folder):
        for path in folder.glob(pattern):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return change


WRONG = [
    (half("*.safetensors"), "cannot read .*model.safetensors"),
    (half("tokenizer.json"), "cannot read .*tokenizer.json"),
    (half("generation_config.json"), "cannot read .*generation_config.json"),
    (changed(vocab_size="many"), "has vocab_size = 'many', where a whole number above 0 is needed"),
    (changed(max_position_embeddings=None), "has max_position_embeddings = None, where a whole number"),
    (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
        "cannot read .*b.safetensors",
    ),
    (without("config.json"), r"is not a Hugging Face model folder \(it has no config.json\)"),
    (lambda folder: (folder / "config.json").write_text("{"), "cannot read .*config.json"),
    (without("*.safetensors"), r"has no weights \(\*.safetensors\)"),
    (without("tokenizer.json"), r"has no tokenizer \(tokenizer.json\)"),
    (without_template, "has no chat template"),
    (changed(vocab_size=50), r"has a tokenizer of another model: token \d+ is outside of vocab_size = 50"),
    (changed(model_type="gpt2"), "is a 'gpt2' model; the trainer knows llama, qwen2, qwen3"),
    (changed(rope_scaling={"type": "linear", "factor": 4.0}), "uses rope scaling"),
    (changed(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}), "uses rope scaling"),
    (changed(rope_parameters=5), "uses rope scaling"),
    (changed(head_dim="x"), "has head_dim = 'x', where a whole number above 0 is needed"),
    (changed(num_hidden_layers=2.5), "has num_hidden_layers = 2.5, where a whole number"),
    (changed(vocab_size=float("inf")), "has vocab_size = inf, where a whole number"),
    (
        changed(num_attention_heads=4, num_key_value_heads=3),
        "has 3 key and value heads, which do not divide its 4 heads",
    ),
    (changed(rms_norm_eps="small"), "has rms_norm_eps = 'small'"),
    (changed(eos_token_id="</s>"), r"config.json has eos_token_id = \['</s>'\], where numbers"),
    (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}'),
        "cannot read .*its weight_map does not map names to files",
    ),
    (changed(attention_bias=True), "has biases where the trainer's model has none"),
    (changed(model_type="qwen2", use_sliding_window=True), "uses a sliding window"),
    (changed(model_type="llama", head_dim=48), "has heads of head_dim = 48; a llama's here are .* = 32"),
]


@pytest.mark.parametrize("change, complaint", WRONG, ids=[complaint for _, complaint in WRONG])
def test_a_folder_that_cannot_be_used_is_refused(folder, change, complaint):
    change(folder)
    with pytest.raises(RecipeError, match=rf"model\.source: .*{complaint}"):
        resolve_model(ModelConfig(source=str(folder)), Path("unused"), seed=0)


def test_a_folder_that_cannot_be_used_is_refused_in_a_dry_run_too(folder):
    half("*.safetensors")(folder)
    with pytest.raises(RecipeError, match=r"model\.source: cannot read .*model.safetensors"):
        load_recipe(ROOT / "configs" / "blackjack.yaml", [f"model.source={folder}"])


def test_a_folder_that_is_no_model_is_refused_in_a_dry_run_too(tmp_path):
    with pytest.raises(RecipeError, match=r"model\.source: .* is not a Hugging Face model folder"):
        load_recipe(ROOT / "configs" / "blackjack.yaml", [f"model.source={tmp_path}"])


def test_a_folder_of_another_model_than_the_recipes_config_is_refused_in_a_dry_run_too(folder, tmp_path):
    content = json.loads((folder / "config.json").read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content | {"num_hidden_layers": content["num_hidden_layers"] + 1}))
    with pytest.raises(
        RecipeError, match=r"^model\.config: .*other.json is not that of .*: num_hidden_layers is 2 and should be 3"
    ):
        load_recipe(ROOT / "configs" / "blackjack.yaml", [f"model.source={folder}", f"model.config={other}"])


@pytest.mark.parametrize(
    "source, complaint",
    [
        ("tiny-qwen", r"there is no model folder 'tiny-qwen'; did you mean 'tiny-qwen3'\?"),
        ("./nowhere", r"there is no model folder './nowhere'; or use tiny-qwen3, smollm2-135m-instruct, or a hub id"),
    ],
)
def test_a_source_that_is_not_there_is_refused(source, complaint):
    with pytest.raises(RecipeError, match=rf"model\.source: {complaint}"):
        resolve_model(ModelConfig(source=source), Path("unused"), seed=0)


def test_a_model_of_another_architecture_than_the_recipe_was_checked_against_is_refused(folder):
    with pytest.raises(
        RecipeError, match=r"model\.config: .*model_type is 'qwen3' and should be 'qwen2'; vocab_size is"
    ):
        resolve_model(ModelConfig(source=str(folder), config=str(QWEN / "config.json")), Path("unused"), seed=0)


@pytest.mark.parametrize(
    "override, complaint",
    [
        ("model.config=nowhere.json", "model.config: there is no file nowhere.json"),
        ("model.max_length=40000", "model.max_length: 40000 is more than the 32768 positions of"),
        (
            "trainer.parallelism.tensor_parallel=4",
            "trainer.parallelism.tensor_parallel: 4 ranks cannot share the 2 key and value heads of",
        ),
    ],
)
def test_a_recipe_is_checked_against_the_models_own_config(override, complaint, monkeypatch):
    monkeypatch.chdir(ROOT)
    overrides = [
        override,
        "trainer.pack_length=65536",
        "placement.actors.trainer.procs=4",
        "placement.hosts.gpu.gpus=8",
    ]
    if "tensor_parallel" not in override:
        overrides = [override, "trainer.pack_length=65536"]
    with pytest.raises(RecipeError) as refused:
        load_recipe("configs/blackjack_qwen2_5_1_5b.yaml", overrides)
    [line] = str(refused.value).splitlines()
    assert line.startswith(complaint)


def test_the_config_that_comes_with_the_recipe_is_that_of_a_model_of_1_5_billion_parameters():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(QWEN))
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_543_714_304


def edit(path, **values):
    content = json.loads(path.read_text())
    content |= values
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


@pytest.mark.parametrize("written", ["<eos>", {"content": "<eos>", "lstrip": False}])
def test_the_tokenizers_end_of_sequence_counts_where_the_configuration_names_another(folder, written):
    [end] = eos_token_ids(folder)
    for name in ("config.json", "generation_config.json"):
        edit(folder / name, eos_token_id=7)
    edit(folder / "tokenizer_config.json", eos_token=written)
    assert eos_token_ids(folder) == {end, 7}


def test_a_model_whose_answers_would_never_end_is_refused(folder):
    for name in ("config.json", "generation_config.json"):
        edit(folder / name, eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(RecipeError, match=r"^model.source: .* names no token that ends a sequence"):
        check_folder(folder)
