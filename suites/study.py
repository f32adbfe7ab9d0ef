"""The layouts of the CharLLM study (MICRO 2025) as its tables give them, 128 sequences a step throughout.

Rows are in the order of the study's own index. TP stays inside a node, PP spans nodes, DP takes what is left. Where it
shards with FSDP, DP is what remains of the machine; its H100 files give 4 nodes in one place and 8 in another.
"""

from pytest_charllm import Rows

GPT3_175B = Rows(
    "gpt3-175b",
    {
        "h200-sxm:4x8": "tp2pp16 tp4pp8 tp8pp4 pp32 tp8dp4+fsdp",
        "h100-sxm:8x8": "tp2pp32 tp4pp16 tp8pp8 tp8dp8+fsdp",
    },
    global_batch=128,
)
LLAMA3_70B = Rows(
    "llama3-70b",
    {
        "h200-sxm:4x8": "tp8pp2dp2 tp4pp4dp2 tp2pp8dp2 pp16dp2 tp8dp4+fsdp",
        "h100-sxm:8x8": "tp8pp4dp2 tp4pp8dp2 tp2pp16dp2 pp32dp2 tp8dp8+fsdp",
    },
    global_batch=128,
)
MIXTRAL_8X7B = Rows(
    "mixtral-8x7b",
    {
        "h200-sxm:4x8": "dp32+ep8 tp2dp16+ep4",
        "h100-sxm:8x8": "pp2dp32+ep8 tp4dp16+ep4 tp2pp2dp16+ep4 pp4dp16+ep4",
    },
    global_batch=128,
)
MIXTRAL_8X22B = Rows(
    "mixtral-8x22b",
    {
        "h200-sxm:4x8": "pp4dp8+ep8 tp2pp2dp8+ep8 tp4dp8+ep8",
        "h100-sxm:8x8": "tp8dp8+ep8 tp4pp2dp8+ep8 tp2pp4dp8+ep8 pp8dp8+ep8",
    },
    global_batch=128,
)
