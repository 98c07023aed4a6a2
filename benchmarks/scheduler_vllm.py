#!/usr/bin/env python3
"""vLLM's scheduler and KV cache manager in the cases of ``scheduler_cases.py``. Run by ``scheduler.py --peer-python``.

Written for vLLM 0.32. Prints one JSON object on its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from scheduler_cases import BLOCK_SIZE, BUDGET, MODEL_LEN, VOCABULARY, Pool, Prompts, run_all

sys.path.remove(
    str(Path(__file__).resolve().parent)
)  # transformers would take our kernels.py for its package
os.environ.update(
    VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"
)

import numpy as np
import torch
import vllm
from vllm import envs
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

CPU = time.thread_time_ns
LAYERS, KV_HEADS, HEAD_DIM = 30, 3, 64
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 9,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MODEL_LEN,
    "torch_dtype": "bfloat16",
}


def model_config() -> ModelConfig:
    folder = Path(tempfile.mkdtemp(prefix="scheduler-"))
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return ModelConfig(model=str(folder), dtype="bfloat16", max_model_len=MODEL_LEN, skip_tokenizer_init=True)


def build(pool: Pool, model: ModelConfig) -> Scheduler:
    config = VllmConfig(
        model_config=model,
        device_config=DeviceConfig("cpu"),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=pool.caching),
        scheduler_config=SchedulerConfig(
            max_num_seqs=pool.max_num_seqs,
            max_num_batched_tokens=BUDGET,
            max_model_len=MODEL_LEN,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
    )
    config.cache_config.num_gpu_blocks = pool.blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=KV_HEADS, head_size=HEAD_DIM, dtype=torch.bfloat16
    )
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(LAYERS)], spec)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=pool.blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        log_stats=True,
    )


class VllmSubject:
    """vLLM names the blocks of a prompt when the request is built, we when it is first looked up. Both are counted."""

    def __init__(self, pool: Pool, model: ModelConfig) -> None:
        self.scheduler = build(pool, model)
        self.preemptions = 0
        self.tokens = 0
        self._added = 0
        self._rng = np.random.default_rng(0)
        self._hasher = hasher() if pool.caching else None

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    def add(self, prompt: np.ndarray, max_tokens: int) -> int:
        self._added += 1
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        ids = prompt.tolist()
        start = CPU()
        request = Request(f"cmpl-{self._added:032x}-0", ids, params, None, block_hasher=self._hasher)
        self.scheduler.add_request(request)
        return CPU() - start

    def step(self) -> int:
        start = CPU()
        output = self.scheduler.schedule()
        planned = CPU()
        ids = list(output.num_scheduled_tokens)
        tokens = self._rng.integers(3, VOCABULARY, len(ids)).tolist()
        requests = self.scheduler.requests
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=[
                [] if requests[name].is_prefill_chunk else [token]
                for name, token in zip(ids, tokens, strict=True)
            ],
        )
        resumed = CPU()
        self.scheduler.update_from_output(output, result)
        end = CPU()
        self.tokens = output.total_num_scheduled_tokens
        self.preemptions += len(output.preempted_req_ids or ())
        return planned - start + end - resumed


def hasher():
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    return get_request_block_hasher(BLOCK_SIZE, function)


def hash_us() -> float:
    name_blocks = hasher()
    params = SamplingParams(max_tokens=64)
    ids = Prompts(0).make(2_000).tolist()
    times = []
    for i in range(200):
        request = Request(f"hash-{i}", ids, params, None, block_hasher=None)
        start = CPU()
        name_blocks(request)
        times.append((CPU() - start) / 1e3)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = model_config()
    envs.enable_envs_cache()  # as its engine does after start-up
    result = run_all(
        lambda pool: VllmSubject(pool, model),
        options.scale,
        lambda text: print(f"vLLM: {text}", file=sys.stderr),
    )
    result["hash_us"] = round(hash_us(), 1)
    result["version"] = vllm.__version__
    print(json.dumps(result), flush=True)
    os._exit(0)  # its extension modules complain about leaks at an ordinary exit


if __name__ == "__main__":
    main()
