"""PolicyServer: samples from the policy with vLLM, and takes new weights while it serves."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Coroutine
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from monarch.actor import concurrent_endpoint

from rlmesh.actors.config import PolicyServerConfig
from rlmesh.actors.needs_setup import NeedsSetup
from rlmesh.actors.vllm_requests import Limits
from rlmesh.actors.vllm_versions import Admission, Versions
from rlmesh.errors import ActorDied, ActorFailure
from rlmesh.models.folder import eos_token_ids
from rlmesh.rollout.types import Completion, GenerateRequest

if TYPE_CHECKING:
    from rlmesh.weights import WeightStore
    from rlmesh.weights.snapshot import Manifest

Result = TypeVar("Result")

_FORK_SERVER_MODULE = "rlmesh.actors.vllm_fork_server"
# Mean distance to the trainer's logprobs of the probe, in nats. Rounding gives 1e-6 in float32 and 0.01 in bfloat16; a head that
# was not updated, or a layer that is another one's, gives 0.1 and more.
_PROBE_LIMIT, _PROBE_LIMIT_ROUNDED = 1e-4, 0.1


class PolicyServer(NeedsSetup):
    """Tokens in; tokens, their logprobs and the policy version out.

    Logprobs are those of the sampling distribution, temperature applied. Invariants: `logprobs[i]` and `versions[i]` belong to
    `tokens[i]`; the version changes only while the engine stands still, so that each token has exactly one; a sample is
    decided by its request's seed and place alone, but for what the kernels round differently when other sequences are served
    beside it (`engine.batch_invariant` has kernels that do not).

    >>> policy = proc_mesh.spawn("policy", PolicyServer, PolicyServerConfig(), "model", 64, 1.0)        # doctest: +SKIP
    >>> await policy.setup.call_one()
    >>> await policy.generate.call_one([GenerateRequest([5, 6, 7], n=2, seed=0, max_tokens=4)])
    [[Completion(tokens=[9, 2], logprobs=[-0.7, -0.1], finish_reason='stop', versions=[0, 0]), ...]]

    Its process must start with `rlmesh.actors.launch.policy_environment(config)` in its environment (an ActorMesh does so).
    Raises: ActorFailure for what the model cannot be asked, and when the engine fails or does not answer within
    `config.request_timeout_s`.
    """

    def __init__(
        self, config: PolicyServerConfig, model_path: str, max_length: int, temperature: float, pause: str = "keep"
    ):
        self._config, self._model_path, self._max_length = config, model_path, max_length
        self._temperature, self._pause = temperature, pause
        self._admission = Admission()
        self._store: WeightStore | None = None
        self._request_ids = itertools.count()
        self._asked: dict[asyncio.Future, str] = {}  # what `generate` is doing, and for whom
        self._running = 0
        self._busy: list[tuple[float, float]] = []
        self._updating = asyncio.Lock()
        self._verified = asyncio.Event()
        self._verified.set()
        self._failure: ActorFailure | None = None

    @concurrent_endpoint
    async def setup(self, store: WeightStore | None = None, reader: str = "policy") -> None:
        """Start vLLM's engine. `store` is needed to fetch weights; one that replaces another is the same `reader` for it.

        Where something has been published, the newest version is served from the beginning.
        """
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
            await self._prepare_fetching(store, reader)
            for version in (await store.versions())[-1:]:
                await self._fetch(version)

    async def _prepare_fetching(self, store: WeightStore, reader: str) -> None:
        from vllm.platforms import current_platform

        from rlmesh.weights.snapshot import tensor_shapes

        if current_platform.is_cpu() and self._engine.model_config.is_moe:
            raise ActorFailure(
                "PolicyServer: vLLM on CPU corrupts a mixture-of-experts model when its weights are updated; use a GPU"
            )
        self._store, self._reader = store, reader
        self._shapes = tensor_shapes(Path(self._model_path))
        await store.register(self._reader)

    def _start_engine(self) -> None:
        import_module("rlmesh.actors.vllm_processes")  # before anything else of vLLM

        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        from rlmesh.weights.vllm_engine import BACKEND, WorkerExtension

        options = self._config.engine
        arguments = AsyncEngineArgs(
            model=self._model_path,
            load_format="safetensors",  # nothing that is unpickled
            dtype=options.dtype,
            max_model_len=self._max_length,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=max(options.max_num_batched_tokens, self._max_length),
            enforce_eager=options.enforce_eager,
            enable_prefix_caching=options.prefix_caching,
            block_size=options.block_size,
            # On CPU vLLM puts the model into a second process, and each of the two spins while the other works. By its class:
            # vLLM overrules the name, because it cannot bind the one process's threads to cores; here nothing is bound.
            distributed_executor_backend=UniProcExecutor if current_platform.is_cpu() else None,
            # A prompt in two parts rewinds the request's random stream, which torch cannot do on CPU: the engine would die.
            enable_chunked_prefill=False if current_platform.is_cpu() else None,
            tensor_parallel_size=_given_gpus(),
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
        self._limits = Limits(self._engine.model_config.get_vocab_size(), self._max_length)

    @concurrent_endpoint
    async def generate(self, requests: list[GenerateRequest], caller: str = "") -> list[list[Completion]]:
        """`n` completions for each request; every token that ends a sequence for the model is honoured, and kept.

        `abort(caller)` ends what was asked under the same name.
        """
        for request in requests:
            self._limits.check_request(request)
        work = asyncio.gather(*[self._generate(request) for request in requests])
        self._asked[work] = caller
        try:
            with self._counted():
                return list(await work)
        except asyncio.CancelledError:
            raise ActorFailure(f"PolicyServer: what {caller} asked for was aborted") from None
        finally:
            del self._asked[work]

    @concurrent_endpoint
    async def abort(self, caller: str) -> None:
        """End what `generate` is doing for this caller, who does not wait for it any more."""
        for work in [work for work, name in self._asked.items() if name == caller]:
            work.cancel()

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
        output, versions = await self._serve(request.prompt, sampling)
        await self._trusted()
        return [
            self._completion(sample, versions) for sample in sorted(output.outputs, key=lambda sample: sample.index)
        ]

    def _completion(self, sample, versions: Versions) -> Completion:
        tokens = list(sample.token_ids)
        if not tokens or len(tokens) != len(sample.logprobs):
            raise ActorFailure(
                f"PolicyServer: vLLM gave {len(tokens)} tokens and {len(sample.logprobs or [])} logprobs"
            )
        logprobs = [entry[token].logprob for token, entry in zip(tokens, sample.logprobs, strict=True)]
        reason = "stop" if tokens[-1] in self._eos else "length"
        return Completion(tokens, logprobs, reason, versions.of(sample.index, len(tokens)))

    async def _serve(self, prompt: list[int], sampling) -> tuple[Any, Versions]:
        """One request to its end, and the versions that made it; one that an update aborts is made anew from its start."""
        from vllm.v1.engine.exceptions import EngineDeadError

        limit_s, name = self._config.request_timeout_s, ""
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    name = f"{next(self._request_ids)}"
                    output, versions = await self._attempt(name, prompt, sampling)
                    if all(sample.finish_reason != "abort" for sample in output.outputs):
                        return output, versions
        except TimeoutError:
            raise ActorDied(f"PolicyServer: vLLM did not answer within {limit_s:g} s") from None
        except EngineDeadError:
            raise self._failure or _died() from None

    async def _attempt(self, name: str, prompt: list[int], sampling) -> tuple[Any, Versions]:
        # What `AsyncLLM.generate` does for one final output; but it does not tell when the engine has the request.
        async with self._admission.enter(name):
            outputs = await self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        try:
            output = await outputs.get()
        except asyncio.CancelledError:
            await self._engine.abort(name)
            raise
        finally:
            versions = self._admission.leave(name)
        return output, versions

    @concurrent_endpoint
    async def score(self, prompts: list[list[int]], completions: list[list[int]]) -> list[np.ndarray]:
        """Logprob of each token of each completion, under the sampling distribution; float32 [len(completion)] each."""
        self._limits.check_scoring(prompts, completions)
        with self._counted():
            scores = await self._score(self._temperature, prompts, completions)
        await self._trusted()
        return scores

    async def _score(self, temperature: float, prompts: list[list[int]], completions: list[list[int]]):
        from rlmesh.actors.vllm_scoring import score

        async def serve(prompt: list[int], sampling):
            return (await self._serve(prompt, sampling))[0]

        return await score(serve, temperature, prompts, completions)

    @concurrent_endpoint
    async def fetch(self, version: int) -> dict[str, float]:
        """Serve a published version from here on; returns the seconds that it took and that requests stood still.

        With `pause: keep` running requests go on with the new weights, with `wait` they finish first, with `abort` they begin
        anew. Weights that are not those that were published, or not this model's, are refused and the old version is served
        on; when the loaded model does not score the manifest's probe as the trainer did, the server stops: no completion that
        it made with these weights gets out.
        """
        if self._store is None:
            raise ActorFailure("PolicyServer: fetch needs the WeightStore that setup takes")
        if await self._while_alive(self._engine.is_sleeping()):
            raise ActorFailure("PolicyServer: fetch needs an engine that is awake; call wake_up first")
        return await self._fetch(version)

    async def _fetch(self, version: int) -> dict[str, float]:
        from rlmesh.weights.snapshot import check_shapes

        async with self._updating:
            began = time.monotonic()
            manifest = await self._store.manifest(version)
            check_shapes(manifest, self._shapes)
            await self._while_alive(self._hand_over(manifest))
            paused = time.monotonic()
            self._verified.clear()
            try:
                await self._while_alive(self._load(version))
                ended = time.monotonic()
                if manifest.probe:
                    await self._verify(manifest)
            finally:
                self._verified.set()
            await self._store.acknowledge(self._reader, version)
        return {"fetch_s": time.monotonic() - began, "paused_s": ended - paused}

    async def _while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What is asked of an engine that has died would be waited for for ever."""
        task, alive = asyncio.ensure_future(work), self._engine.output_handler
        await asyncio.wait({task, alive}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            raise self._failure or _died()
        return task.result()

    async def _hand_over(self, manifest: Manifest) -> None:
        """Give the version's bytes to vLLM's worker, which checks them; requests are served meanwhile."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self._store.on_this_host(manifest) as segments:
            await self._engine.start_weight_update()
            update = {"segments": segments, "manifest": manifest.to_dict()}
            await self._engine.update_weights(WeightTransferUpdateRequest(update))

    async def _load(self, version: int) -> None:
        core = self._engine.engine_core
        try:
            async with self._admission.update(version):
                # The engine core's own pause: `pause_generation` adds a sleep of 20 ms. The prefix cache is emptied with it.
                await core.pause_scheduler_async(mode=self._pause, clear_cache=True)
                self._admission.note(await core.call_utility_async("output_counts"), version)
                await self._engine.finish_weight_update(weight_version=str(version))
                await core.resume_scheduler_async()
        except Exception as error:
            raise self._stopped(f"loading version {version} failed: {error}") from error

    async def _verify(self, manifest: Manifest) -> None:
        """Score the probe, beside the requests that run, and compare."""
        probe = manifest.probe
        tokens = probe["tokens"][: self._max_length]
        [scores] = await self._score(1.0, [tokens[:1]], [tokens[1:]])
        distance = float(np.abs(scores - np.array(probe["logprobs"][: len(scores)])).mean())
        dtypes = {probe["dtype"], self._config.engine.dtype, *manifest.dtypes}
        limit = _PROBE_LIMIT if dtypes == {"float32"} else _PROBE_LIMIT_ROUNDED
        if not distance <= limit:
            raise self._stopped(
                f"the logprobs of a fixed sequence under version {manifest.version} are {distance:.2g} nats from the trainer's on average, "
                f"more than {limit:g}: what it serves is not what was published"
            )

    async def _trusted(self) -> None:
        """Completions wait here until the weights that made them have been verified."""
        await self._verified.wait()
        if self._failure:
            raise self._failure

    def _stopped(self, why: str) -> ActorFailure:
        """Stop the engine, whose model is none that was published: running requests end with an error."""
        self._failure = ActorFailure(f"PolicyServer: stopped, because {why}")
        self._engine.output_processor.propagate_error(self._failure)
        self._engine.shutdown()
        return self._failure

    @concurrent_endpoint
    async def sleep(self) -> None:
        """Finish the running requests, then give the GPU's memory free: weights go to the host's memory, the KV cache goes.

        Requests that come now wait until `wake_up`. Needs `config.sleep`; on CPU nothing but the waiting happens.
        """
        if not self._config.sleep:
            raise ActorFailure("PolicyServer: sleep needs policy.sleep: true, which vLLM has to know when it starts")
        await self._while_alive(self._engine.sleep(level=1, mode="wait"))

    @concurrent_endpoint
    async def wake_up(self) -> None:
        """Take the memory again and serve, with the weights as they were."""
        await self._while_alive(self._engine.wake_up())

    @concurrent_endpoint
    async def version(self) -> int:
        """The version that is served."""
        return self._admission.version

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


def _given_gpus() -> int:
    """How many GPUs an ActorMesh gave to this process; 1 where none was given: vLLM takes the one that it finds."""
    return len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))


def _died() -> ActorDied:
    return ActorDied("PolicyServer: vLLM's engine died; the actor's log says why")
