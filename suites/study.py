"""The CharLLM study (MICRO 2025) as its tables give it: 128 sequences a step, bf16, layouts in the order of its index.

TP stays inside a node, PP spans nodes, DP takes what is left. With tensor parallelism goes sequence parallelism, except
where FSDP shards; data-parallel ranks share the optimizer wherever they do not shard it. Machines with fewer GPUs take
the same rows in a smaller form (`pytest_charllm.scenario.reduced`).
"""

from dataclasses import replace

from pytest_charllm import Rows

H200 = "h200-sxm:4x8"

GPT3_175B = Rows(
    "gpt3-175b",
    {
        "h200-sxm:4x8": "tp2pp16 tp4pp8 tp8pp4 pp32 tp8dp4+fsdp+nosp",
        "h100-sxm:8x8": "tp2pp32 tp4pp16 tp8pp8",
    },
    global_batch=128, reduces="*", shares_optimizer=True,
)  # fmt: skip
GPT3_175B_FSDP = Rows("gpt3-175b", {"h100-sxm:8x8": "tp8dp8+fsdp+nosp"}, global_batch=32)
"""Its files say 8 nodes in one place and 4 in another; and a quarter of the batch."""

LLAMA3_70B = Rows(
    "llama3-70b",
    {
        "h200-sxm:4x8": "tp8pp2dp2 tp4pp4dp2 tp2pp8dp2 pp16dp2 tp8dp4+fsdp+nosp",
        "h100-sxm:8x8": "tp8pp4dp2 tp4pp8dp2 tp2pp16dp2 pp32dp2 tp8dp8+fsdp+nosp",
    },
    global_batch=128, reduces="*", shares_optimizer=True,
)  # fmt: skip
MIXTRAL_8X7B = Rows(
    "mixtral-8x7b",
    {
        "h200-sxm:4x8": "dp32+ep8 tp2dp16+ep4",
        "h100-sxm:8x8": "pp2dp32+ep8 tp4dp16+ep4 tp2pp2dp16+ep4 pp4dp16+ep4",
    },
    global_batch=128, reduces="*", shares_optimizer=True,
)  # fmt: skip
MIXTRAL_8X22B = Rows(
    "mixtral-8x22b",
    {
        "h200-sxm:4x8": "pp4dp8+ep8 tp2pp2dp8+ep8 tp4dp8+ep8",
        "h100-sxm:8x8": "tp8dp8+ep8 tp4pp2dp8+ep8 tp2pp4dp8+ep8 pp8dp8+ep8",
    },
    global_batch=128, reduces="*", shares_optimizer=True,
)  # fmt: skip

# Of its 30B models on MI250 the study published neither shapes nor layouts. These are ours, in the manner of the rest.
GPT3_30B = Rows(
    "gpt3-30b",
    {"mi250:4x8": "tp2pp16 tp4pp8 tp8pp4 tp8dp4+fsdp+nosp"},
    global_batch=128, reduces="mi250", shares_optimizer=True,
)  # fmt: skip
LLAMA3_30B = Rows(
    "llama3-30b",
    {"mi250:4x8": "tp8pp2dp2 tp4pp4dp2 tp2pp8dp2 pp16dp2 tp8dp4+fsdp+nosp"},
    global_batch=128, reduces="mi250", shares_optimizer=True,
)  # fmt: skip


def on_h200(rows: Rows) -> Rows:
    """Of a question that the study asked on the H200 alone."""
    return replace(rows, layouts={H200: rows.layouts[H200]})
