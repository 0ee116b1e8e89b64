"""A Hugging Face folder as a torchtitan model, and back.

Families: Qwen2 (Qwen2.5 too), Qwen3 (dense) and Llama (SmolLM2 too), with tied or untied embeddings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torchtitan.tools import utils as titan_utils

if not torch.accelerator.is_available():
    # torchtitan takes "cuda" for granted where it finds no accelerator; everything below reads these two.
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.config import TORCH_DTYPE_MAP, CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.protocols.module import Module

from rlmesh.errors import RecipeError
from rlmesh.models.config import TrainerConfig
from rlmesh.models.folder import architecture_problem

_ACTIVATION_CHECKPOINTS = {"none": lambda: None, "selective": SelectiveAC.Config, "full": FullAC.Config}


class PackedAttention(Module):
    """Scaled dot-product attention with an explicit mask: runs on CPU forward and backward, packed or not.

    `attention_masks` is a bool tensor [B, 1, L, L], True where attention is allowed; None means causal.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config: Config):
        super().__init__()

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, scale=None, enable_gqa=False, **_):
        q, k, v = (t.transpose(1, 2) for t in (q_BLNH, k_BLNH, v_BLNH))
        causal = attention_masks is None
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attention_masks, is_causal=causal, scale=scale, enable_gqa=enable_gqa
        )
        return out.transpose(1, 2)


class Float32Head(Linear):
    """The output head, in float32 whatever the forward pass is in: rounded to bfloat16, a logit keeps three digits."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # torchtitan lays it out over the ranks by this name
        return F.linear(input.float(), self.weight.float())


@dataclass(frozen=True)
class Family:
    """What torchtitan has for one architecture."""

    config: Any  # torchtitan's model configuration
    parallelize: Any  # its parallelize function
    adapter: type  # its state dict adapter


def read_family(model_path: Path) -> Family:
    """The torchtitan model of a Hugging Face folder. Raises: RecipeError for an architecture that is not supported."""
    hf = json.loads((model_path / "config.json").read_text())
    if problem := architecture_problem(hf):
        raise RecipeError(f"model.source: {model_path} {problem}")
    family = {"qwen2": _qwen2, "qwen3": _qwen3, "llama": _llama}[hf["model_type"]](hf)
    for layer in family.config.layers:
        layer.attention.inner_attention = PackedAttention.Config()
    return family


def _rope_theta(hf: dict) -> float:
    return (hf.get("rope_parameters") or {}).get("rope_theta") or hf.get("rope_theta") or 10000.0


def _ends(hf: dict) -> dict[str, Any]:
    """Embedding, final norm and head; their values are loaded, never initialised."""
    dim, vocab_size = hf["hidden_size"], hf["vocab_size"]
    return {
        "dim": dim,
        "vocab_size": vocab_size,
        "enable_weight_tying": hf.get("tie_word_embeddings", False),
        "tok_embeddings": Embedding.Config(num_embeddings=vocab_size, embedding_dim=dim),
        "norm": RMSNorm.Config(normalized_shape=dim, eps=hf["rms_norm_eps"]),
        "lm_head": Float32Head.Config(in_features=dim, out_features=vocab_size),
    }


def _qwen_layers(hf: dict) -> list[Any]:
    from torchtitan.models import qwen3

    head_dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    layers = qwen3._build_qwen3_layers(
        n_layers=hf["num_hidden_layers"],
        dim=hf["hidden_size"],
        n_heads=hf["num_attention_heads"],
        n_kv_heads=hf["num_key_value_heads"],
        head_dim=head_dim,
        hidden_dim=hf["intermediate_size"],
        attn_backend="flex",
        rope=CosSinRoPE.Config(dim=head_dim, max_seq_len=hf["max_position_embeddings"], theta=_rope_theta(hf)),
    )
    for layer in layers:
        for norm in (layer.attention_norm, layer.ffn_norm, layer.attention.qk_norm):
            norm.eps = hf["rms_norm_eps"]
    return layers


def _qwen3(hf: dict) -> Family:
    from torchtitan.models import qwen3

    config = qwen3.Qwen3Model.Config(layers=_qwen_layers(hf), **_ends(hf))
    return Family(config, qwen3.parallelize_qwen3, qwen3.Qwen3StateDictAdapter)


def _qwen2(hf: dict) -> Family:
    """Qwen2 is Qwen3 without norms on queries and keys, and with biases on queries, keys and values."""
    from torchtitan.models import qwen3

    class Qwen2StateDictAdapter(qwen3.Qwen3StateDictAdapter):
        def __init__(self, *args):
            super().__init__(*args)
            for name in "qkv":
                layer = f"model.layers.{{}}.self_attn.{name}_proj", f"layers.{{}}.attention.qkv_linear.w{name}"
                self.from_hf_map[f"{layer[0]}.bias"] = f"{layer[1]}.bias"

    layers = _qwen_layers(hf)
    for layer in layers:
        layer.attention.qk_norm = None
        layer.attention.qkv_linear.wqkv.bias = True
    return Family(qwen3.Qwen3Model.Config(layers=layers, **_ends(hf)), qwen3.parallelize_qwen3, Qwen2StateDictAdapter)


def _llama(hf: dict) -> Family:
    from torchtitan.models import llama3

    head_dim = hf["hidden_size"] // hf["num_attention_heads"]
    layers = llama3._build_llama3_layers(
        n_layers=hf["num_hidden_layers"],
        dim=hf["hidden_size"],
        n_heads=hf["num_attention_heads"],
        n_kv_heads=hf["num_key_value_heads"],
        hidden_dim=hf["intermediate_size"],
        attn_backend="flex",
        rope=ComplexRoPE.Config(dim=head_dim, max_seq_len=hf["max_position_embeddings"], theta=_rope_theta(hf)),
    )
    for layer in layers:
        layer.attention_norm.eps = layer.ffn_norm.eps = hf["rms_norm_eps"]
    return Family(
        llama3.Llama3Model.Config(layers=layers, **_ends(hf)), llama3.parallelize_llama, llama3.Llama3StateDictAdapter
    )


class TitanModel:
    """A torchtitan model with a Hugging Face folder's weights, parallelised over the ranks of the process group.

    Weights are float32; `config.dtype` is the numeric type of the forward and backward pass.

    >>> titan = TitanModel(Path("model"), TrainerConfig(), world_size=1)           # doctest: +SKIP
    >>> hidden_BLD = titan.model(tokens_BL, positions=positions_BL, attention_masks=mask_B1LL)
    >>> titan.logits(hidden_BLD[0])
    """

    def __init__(self, model_path: Path, config: TrainerConfig, world_size: int):
        self.model_path = model_path
        self.device = torch.device(titan_utils.device_type)
        family = read_family(model_path)
        parallel, training = _titan_config(config)
        self.dims = ParallelDims.from_config(parallel, world_size)
        family.config.update_from_config(
            config=SimpleNamespace(parallelism=parallel, training=training, debug=DebugConfig())
        )
        from torchtitan.distributed import utils as distributed

        distributed.set_spmd_backend(parallel.spmd_backend)
        self.context = distributed.get_spmd_context(parallel_dims=self.dims, spmd_typechecking=False)
        with torch.device("meta"), titan_utils.set_default_dtype(TORCH_DTYPE_MAP[training.dtype]):
            model = family.config.build()
        if world_size > 1 or config.dtype != "float32" or config.activation_checkpoint != "none":
            model = family.parallelize(
                model,
                parallel_dims=self.dims,
                training=training,
                parallelism=parallel,
                compile_config=CompileConfig(enable=False),
                ac_config=_ACTIVATION_CHECKPOINTS[config.activation_checkpoint](),
                dump_folder="",
            )
        for module in model.modules():
            if isinstance(module, FSDPModule) and self.device.type == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo has no averaging reduction
        model.to_empty(device=self.device)
        with torch.no_grad():
            model.init_weights(buffer_device=None)  # the rotary tables; the weights are loaded next
        model._skip_lm_head = True
        self.model = model
        self.adapter = family.adapter(family.config, str(model_path))
        self.tied, self.vocab_size = family.config.enable_weight_tying, family.config.vocab_size
        self.load_hf(read_safetensors(model_path))

    def logits(self, hidden_MD: torch.Tensor) -> torch.Tensor:
        """Float32 logits [M, V] of the given positions; only what is needed is ever projected to the vocabulary."""
        with self.context():
            logits = self.model.lm_head(hidden_MD[None])
        if isinstance(logits, DTensor):
            logits = logits.full_tensor()
        return logits[0]

    def hidden(self, tokens_BL: torch.Tensor, positions_BL: torch.Tensor, mask_B1LL: torch.Tensor) -> torch.Tensor:
        """Last hidden states [B, L, D]."""
        with self.context():
            hidden = self.model(tokens_BL, positions=positions_BL, attention_masks=mask_B1LL)
        return hidden.full_tensor() if isinstance(hidden, DTensor) else hidden

    def end_forward(self) -> None:
        """Give back what FSDP gathered for forward passes that no backward pass follows (which would do so).

        Else the gathered weights stay in the place of the parameters: without gradients, and without what a step changes.
        """
        if isinstance(self.model, FSDPModule):
            self.model.reset_iter_state()

    def hf_shards(self) -> dict[str, torch.Tensor]:
        """This rank's shards (DTensors) by their Hugging Face names, the head of a tied model too; every rank must call it.

        Most are the live weights, not copies.
        """
        state = {name: tensor.detach() for name, tensor in self.adapter.to_hf(self.model.state_dict()).items()}
        if self.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        return state

    def hf_state_dict(self) -> dict[str, torch.Tensor]:
        """Whole weights by their Hugging Face names; every rank must call it."""
        return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in self.hf_shards().items()}

    def load_hf(self, weights: dict[str, torch.Tensor]) -> None:
        """Take weights by their Hugging Face names. Raises: RecipeError for missing or surplus names, and other shapes."""
        # torchtitan's names, whose tensors may be copies: fused projections are split and permuted for them.
        state = self.model.state_dict()
        wanted, weights = self.adapter.to_hf(state).keys() - {"lm_head.weight"}, dict(weights)
        if not self.tied:
            wanted |= {"lm_head.weight"}
        missing, surplus = wanted - weights.keys(), weights.keys() - wanted - {"lm_head.weight"}
        if missing or surplus:
            raise RecipeError(
                f"model.source: weights do not fit the config.json of {self.model_path}: missing {sorted(missing)[:3]}, surplus "
                f"{sorted(surplus)[:3]}"
            )
        if self.tied:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        sources = self.adapter.from_hf(weights)
        for name, target in state.items():
            if target.shape != sources[name].shape:
                raise RecipeError(
                    f"model.source: weights do not fit the config.json of {self.model_path}: {name} is of shape "
                    f"{list(sources[name].shape)} and should be {list(target.shape)}"
                )
        self.model.load_state_dict({name: _placed_like(target, sources[name]) for name, target in state.items()})


def _titan_config(config: TrainerConfig) -> tuple[ParallelismConfig, TrainingConfig]:
    degrees = config.parallelism
    parallel = ParallelismConfig(
        spmd_backend="partial_dtensor",
        data_parallel_replicate_degree=degrees.data_parallel_replicate,
        data_parallel_shard_degree=degrees.data_parallel_shard,
        tensor_parallel_degree=degrees.tensor_parallel,
        enable_sequence_parallel=False,
    )
    training = TrainingConfig(
        local_batch_size=1, seq_len=config.pack_length, dtype="float32", mixed_precision_param=config.dtype, steps=1
    )
    return parallel, training


def read_safetensors(model_path: Path) -> dict[str, torch.Tensor]:
    """All weights of a Hugging Face folder by their names."""
    from safetensors.torch import load_file

    files = sorted(model_path.glob("*.safetensors"))
    if not files:
        raise RecipeError(f"model.source: {model_path} has no *.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _placed_like(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`source`, which every rank has whole, laid out over the ranks as `target` is."""
    if not isinstance(target, DTensor):
        return source
    source = source.to(target.device, target.dtype)
    return distribute_tensor(source, target.device_mesh, target.placements, src_data_rank=None)
