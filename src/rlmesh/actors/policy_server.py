"""PolicyServer: samples from the policy with vLLM, and takes new weights while it serves."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from monarch.actor import Actor, concurrent_endpoint, context

from rlmesh.actors.config import PolicyServerConfig
from rlmesh.errors import ActorFailure
from rlmesh.models.folder import eos_token_ids
from rlmesh.rollout.types import Completion, GenerateRequest

if TYPE_CHECKING:
    from rlmesh.weights import WeightStore
    from rlmesh.weights.snapshot import Manifest

_FORK_SERVER_MODULE = "rlmesh.actors.vllm_fork_server"


class PolicyServer(Actor):
    """Tokens in; tokens, their logprobs and the policy version out.

    Logprobs are those of the sampling distribution, temperature applied. Invariants: `logprobs[i]` belongs to `tokens[i]`; the
    version changes only while the engine stands still, so that no token of a completion is older than its lowest version
    or newer than its highest; a sample is decided by its request's seed and place alone, whatever is served beside it.

    >>> policy = proc_mesh.spawn("policy", PolicyServer, PolicyServerConfig(), "model", 64, 1.0)        # doctest: +SKIP
    >>> await policy.setup.call_one()
    >>> await policy.generate.call_one([GenerateRequest([5, 6, 7], n=2, seed=0, max_tokens=4)])
    [[Completion(tokens=[9, 2], logprobs=[-0.7, -0.1], finish_reason='stop', min_version=0, max_version=0), ...]]

    Its process must start with `rlmesh.actors.launch.policy_environment(config)` in its environment (an ActorMesh does so).
    Raises: ActorFailure when the engine fails or does not answer within `config.request_timeout_s`.
    """

    def __init__(
        self, config: PolicyServerConfig, model_path: str, max_length: int, temperature: float, pause: str = "keep"
    ):
        self._config, self._model_path, self._max_length = config, model_path, max_length
        self._temperature, self._pause = temperature, pause
        self._version = 0
        self._store: WeightStore | None = None
        self._request_ids = itertools.count()
        self._running = 0
        self._busy: list[tuple[float, float]] = []
        self._updating = asyncio.Lock()

    @concurrent_endpoint
    async def setup(self, store: WeightStore | None = None) -> None:
        """Start vLLM's engine. `store` is needed to fetch weights."""
        self._eos = sorted(eos_token_ids(self._model_path))
        # vLLM's own processes are forked from one that imports vLLM while this one does.
        import multiprocessing
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload([_FORK_SERVER_MODULE])
        forkserver.ensure_running()
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await asyncio.to_thread(self._start_engine)
        except TimeoutError:
            raise ActorFailure(f"PolicyServer: vLLM was not ready within {self._config.start_timeout_s:g} s") from None
        # The first request warms the engine up, so that no episode has to.
        await self._generate(GenerateRequest([0], n=1, seed=0, max_tokens=1))
        if store is not None:
            await self._prepare_fetching(store)

    async def _prepare_fetching(self, store: WeightStore) -> None:
        from vllm.platforms import current_platform

        from rlmesh.weights.snapshot import tensor_shapes

        if current_platform.is_cpu() and self._engine.model_config.is_moe:
            raise ActorFailure(
                "PolicyServer: vLLM on CPU corrupts a mixture-of-experts model when its weights are updated; use a GPU"
            )
        actor = context().actor_instance
        self._store, self._reader = store, f"{actor.name}[{actor.rank.rank}]"
        self._shapes = tensor_shapes(Path(self._model_path))
        await store.register(self._reader)

    def _start_engine(self) -> None:
        import_module("rlmesh.actors.vllm_processes")  # before anything else of vLLM

        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from rlmesh.weights.vllm_engine import BACKEND, WorkerExtension

        options = self._config.engine
        arguments = AsyncEngineArgs(
            model=self._model_path,
            dtype=options.dtype,
            max_model_len=self._max_length,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=max(options.max_num_batched_tokens, self._max_length),
            enforce_eager=options.enforce_eager,
            enable_prefix_caching=options.prefix_caching,
            block_size=options.block_size,
            # A prompt in two parts rewinds the request's random stream, which torch cannot do on CPU: the engine would die.
            enable_chunked_prefill=False if current_platform.is_cpu() else None,
            gpu_memory_utilization=options.gpu_memory_utilization,
            skip_tokenizer_init=True,  # token in, token out: nothing here knows of text
            generation_config="vllm",  # and nothing but the request decides how is sampled
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
            # On CPU there is no memory to give free: there `sleep` stops the scheduler and nothing else.
            enable_sleep_mode=self._config.sleep and current_platform.is_sleep_mode_available(),
        )
        self._engine = AsyncLLM.from_engine_args(arguments)

    @concurrent_endpoint
    async def generate(self, requests: list[GenerateRequest]) -> list[list[Completion]]:
        """`n` completions for each request; every token that ends a sequence for the model is honoured, and kept."""
        with self._counted():
            return list(await asyncio.gather(*[self._generate(request) for request in requests]))

    async def _generate(self, request: GenerateRequest) -> list[Completion]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            n=request.n,
            # Sample i gets seed + i from vLLM: leave room, or neighbouring requests would share streams.
            seed=request.seed << 16,
            temperature=self._temperature,
            max_tokens=request.max_tokens,
            logprobs=0,
            stop_token_ids=self._eos,
            ignore_eos=True,  # the tokenizer's one end of sequence; `stop_token_ids` has them all
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        first_version = self._version
        output = await self._serve(request.prompt, sampling)
        return [
            self._completion(sample, first_version)
            for sample in sorted(output.outputs, key=lambda sample: sample.index)
        ]

    def _completion(self, sample, first_version: int) -> Completion:
        tokens = list(sample.token_ids)
        if not tokens or len(tokens) != len(sample.logprobs):
            raise ActorFailure(
                f"PolicyServer: vLLM gave {len(tokens)} tokens and {len(sample.logprobs or [])} logprobs"
            )
        logprobs = [entry[token].logprob for token, entry in zip(tokens, sample.logprobs, strict=True)]
        reason = "stop" if tokens[-1] in self._eos else "length"
        return Completion(tokens, logprobs, reason, first_version, self._version)

    async def _serve(self, prompt: list[int], sampling):
        """One request to its end."""
        name, output = f"{next(self._request_ids)}", None
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                async for output in self._engine.generate({"prompt_token_ids": prompt}, sampling, name):  # noqa: B007
                    pass
        except TimeoutError:
            await self._engine.abort(name)
            raise ActorFailure(
                f"PolicyServer: vLLM did not answer within {self._config.request_timeout_s:g} s"
            ) from None
        return output

    @concurrent_endpoint
    async def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[np.ndarray]:
        """Logprob of each token of each completion, under the sampling distribution; float32 [len(completion)] each."""
        with self._counted():
            if self._temperature != 1:
                return await self._score_by_prefix(prompts, completions)
            pairs = zip(prompts, completions, strict=True)
            return list(
                await asyncio.gather(*[self._score_at_once(prompt, completion) for prompt, completion in pairs])
            )

    async def _score_at_once(self, prompt: list[int], completion: list[int]) -> np.ndarray:
        """In one pass: vLLM's logprobs of a prompt (always of temperature 1), and the last token as the one to sample."""
        from vllm import SamplingParams

        *before, last = completion
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=0, logprob_token_ids=[last], detokenize=False)
        output = await self._serve(prompt + before, sampling)
        entries = [*output.prompt_logprobs[len(prompt) :], output.outputs[0].logprobs[0]]
        return np.array(
            [entry[token].logprob for token, entry in zip(completion, entries, strict=True)], dtype=np.float32
        )

    async def _score_by_prefix(self, prompts: list[list[int]], completions: list[list[int]]) -> list[np.ndarray]:
        """Each token as the one to be sampled next, where vLLM does apply the temperature; once for each prefix."""
        from vllm import SamplingParams
        from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS

        def places(prompt: list[int], completion: list[int]) -> list[tuple[tuple[int, ...], int]]:
            return [((*prompt, *completion[:place]), token) for place, token in enumerate(completion)]

        pairs = [places(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        wanted: dict[tuple[int, ...], set[int]] = {}
        for prefix, token in itertools.chain.from_iterable(pairs):
            wanted.setdefault(prefix, set()).add(token)
        logprobs: dict[tuple[tuple[int, ...], int], float] = {}

        async def ask(prefix: tuple[int, ...], tokens: list[int]) -> None:
            sampling = SamplingParams(
                max_tokens=1, temperature=self._temperature, logprob_token_ids=tokens, detokenize=False
            )
            output = await self._serve(list(prefix), sampling)
            logprobs.update({(prefix, token): entry.logprob for token, entry in output.outputs[0].logprobs[0].items()})

        questions = [
            ask(prefix, sorted(tokens)[first : first + MAX_LOGPROB_TOKEN_IDS])
            for prefix, tokens in wanted.items()
            for first in range(0, len(tokens), MAX_LOGPROB_TOKEN_IDS)
        ]
        await asyncio.gather(*questions)
        return [np.array([logprobs[place] for place in pair], dtype=np.float32) for pair in pairs]

    @concurrent_endpoint
    async def fetch(self, version: int) -> dict[str, float]:
        """Serve a published version from here on; returns the seconds that it took and that requests stood still.

        With `pause: keep` running requests go on with the new weights, with `wait` they finish first. Weights that are not
        those that were published, or not this model's, are refused and the old version is served on.
        """
        if self._store is None:
            raise ActorFailure("PolicyServer: fetch needs the WeightStore that setup takes")
        if await self._engine.is_sleeping():
            raise ActorFailure("PolicyServer: fetch needs an engine that is awake; call wake_up first")
        from rlmesh.weights.snapshot import check_shapes

        async with self._updating:
            began = time.monotonic()
            manifest = await self._store.manifest(version)
            check_shapes(manifest, self._shapes)
            await self._hand_over(manifest)
            paused = time.monotonic()
            await self._load(version)
            ended = time.monotonic()
            await self._store.acknowledge(self._reader, version)
        return {"fetch_s": ended - began, "paused_s": ended - paused}

    async def _hand_over(self, manifest: Manifest) -> None:
        """Give the version's bytes to vLLM's worker, which checks them; requests are served meanwhile."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        from rlmesh.segments import own_segment

        own = own_segment()
        try:
            segment = await self._store.segment(manifest, own)
            await self._engine.start_weight_update()
            await self._engine.update_weights(
                WeightTransferUpdateRequest({"segment": str(segment), "manifest": manifest.to_dict()})
            )
        finally:
            own.unlink(missing_ok=True)  # the worker has it mapped

    async def _load(self, version: int) -> None:
        # The engine core's own pause: `pause_generation` adds a sleep of 20 ms. The prefix cache is emptied with it.
        await self._engine.engine_core.pause_scheduler_async(mode=self._pause, clear_cache=True)
        try:
            await self._engine.finish_weight_update(weight_version=str(version))
        except Exception as error:
            # The model may be neither the old nor the new one: it must not serve, and running requests end with an error.
            self._engine.output_processor.propagate_error(error)
            self._engine.shutdown()
            raise ActorFailure(f"PolicyServer: stopped, because loading version {version} failed: {error}") from error
        self._version = version
        await self._engine.engine_core.resume_scheduler_async()

    @concurrent_endpoint
    async def sleep(self) -> None:
        """Finish the running requests, then give the GPU's memory free: weights go to the host's memory, the KV cache goes.

        Requests that come now wait until `wake_up`. Needs `config.sleep`; on CPU nothing but the waiting happens.
        """
        if not self._config.sleep:
            raise ActorFailure("PolicyServer: sleep needs policy.sleep: true, which vLLM has to know when it starts")
        await self._engine.sleep(level=1, mode="wait")

    @concurrent_endpoint
    async def wake_up(self) -> None:
        """Take the memory again and serve, with the weights as they were."""
        await self._engine.wake_up()

    @concurrent_endpoint
    async def version(self) -> int:
        """The version that is served."""
        return self._version

    @concurrent_endpoint
    async def busy(self) -> list[tuple[float, float]]:
        """Since the last call: when requests were being served, as intervals of this host's monotonic clock."""
        now = time.monotonic()
        if self._running:  # what is still going on is split here: the rest comes with the next call
            self._busy.append((self._busy_since, now))
            self._busy_since = now
        intervals, self._busy = self._busy, []
        return intervals

    @concurrent_endpoint
    async def close(self) -> None:
        """Stop the engine and its processes."""
        if engine := getattr(self, "_engine", None):
            engine.shutdown()

    @contextmanager
    def _counted(self):
        if self._running == 0:
            self._busy_since = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._busy.append((self._busy_since, time.monotonic()))
