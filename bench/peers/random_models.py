"""Writes the random models of lib/bench/suites/families.ts, one of each family, of about the size of SmolLM2-135M.

Sizes follow the family's small models where SmolLM2 has no such part. Windows are short, so that texts of 512 tokens
are longer. Weights are those with which transformers begins, from a fixed seed, in bfloat16: 2.7 GB in all.

Usage: python bench/peers/random_models.py DIRECTORY [FAMILY ...]
Without families all are written that are not there yet.
"""

import os
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHARED = dict(vocab_size=49152, hidden_size=576, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
              intermediate_size=1536, num_hidden_layers=30, max_position_embeddings=2048, tie_word_embeddings=True,
              pad_token_id=0, bos_token_id=1, eos_token_id=2)
GEMMA = dict(num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=128)
DELTA = dict(linear_num_key_heads=9, linear_num_value_heads=9, linear_key_head_dim=128, linear_value_head_dim=128)
EXPERTS = dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=192)

CONFIGS = {
    "llama": dict(model_type="llama"),
    "qwen3_5": dict(model_type="qwen3_5_text", num_hidden_layers=24, intermediate_size=1152, **DELTA),
    "gemma3": dict(model_type="gemma3_text", num_hidden_layers=26, **GEMMA),
    "smollm3": dict(model_type="smollm3"),
    "ministral3": dict(model_type="ministral3"),
    "olmo3": dict(model_type="olmo3", sliding_window=128),
    "qwen3_moe": dict(model_type="qwen3_moe", num_hidden_layers=18, norm_topk_prob=True, **EXPERTS),
    "qwen3_5_moe": dict(model_type="qwen3_5_moe_text", num_hidden_layers=12, shared_expert_intermediate_size=192,
                        **DELTA, **EXPERTS),
    "gemma4": dict(model_type="gemma4_text", num_hidden_layers=20, intermediate_size=1024, global_head_dim=512,
                   num_kv_shared_layers=10, use_double_wide_mlp=True, final_logit_softcapping=30.0,
                   hidden_size_per_layer_input=32, vocab_size_per_layer_input=49152, **GEMMA),
    "gemma4_moe": dict(model_type="gemma4_text", num_hidden_layers=14, intermediate_size=512, enable_moe_block=True,
                       num_experts=16, top_k_experts=4, moe_intermediate_size=192, attention_k_eq_v=True,
                       num_global_key_value_heads=1, global_head_dim=512, num_kv_shared_layers=0,
                       hidden_size_per_layer_input=0, final_logit_softcapping=30.0, **GEMMA),
    "gpt_oss": dict(model_type="gpt_oss", num_hidden_layers=18, sliding_window=128, num_local_experts=16,
                    num_experts_per_tok=4, intermediate_size=192),
}

if __name__ == "__main__":
    directory, families = Path(sys.argv[1]), sys.argv[2:] or list(CONFIGS)
    for family in families:
        if (directory / family).exists() and not sys.argv[2:]:
            continue
        own = dict(CONFIGS[family])
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(own.pop("model_type"), **(SHARED | own)))
        unfinished = directory / f".{family}-{os.getpid()}"
        model.to(torch.bfloat16).save_pretrained(unfinished)
        shutil.rmtree(directory / family, ignore_errors=True)
        unfinished.rename(directory / family)
        print(f"{family:12} {sum(one.numel() for one in model.parameters()) / 1e6:.0f} M parameters")
