# Every source of native/, by library. Add new files here: the configuration fails for a source that is not listed.

# The parts without torch, which the sanitizers and the fuzzers build too.
set(nlac_plain_sources
  native/core/io/atomic_file.cc
  native/core/io/gguf.cc
  native/core/io/json.cc
  native/core/io/mapped_file.cc
  native/core/io/safetensors.cc
  native/core/io/tensor_entry.cc
  native/core/model/config.cc
  native/core/model/config_gguf.cc
  native/core/model/config_json.cc
  native/core/model/config_rope.cc
  native/core/model/config_section.cc
  native/core/model/families.cc
  native/core/model/families/gemma3.cc
  native/core/model/families/gemma4.cc
  native/core/model/families/gpt_oss.cc
  native/core/model/families/llama.cc
  native/core/model/families/mistral.cc
  native/core/model/families/olmo3.cc
  native/core/model/families/qwen.cc
  native/core/model/families/qwen3_5.cc
  native/core/model/families/qwen3_moe.cc
  native/core/model/families/smollm3.cc
  native/core/model/gguf_layout.cc
  native/core/replay/cuda_sum_tree.cc
  native/core/replay/priority_tree.cc
  native/core/replay/sum_tree.cc
  native/core/replay/sum_tree_kernels.cc
  native/core/replay/tree_file.cc
  native/core/generate/block_pool.cc
  native/core/generate/grammar.cc
  native/core/generate/state_pool.cc)
set(nlac_cpu_sources
  native/core/cpu/bf16_amx.cc
  native/core/cpu/bf16_attention.cc
  native/core/cpu/bf16_elementwise.cc
  native/core/cpu/bf16_kernels.cc
  native/core/cpu/bf16_linear.cc
  native/core/cpu/bf16_products.cc
  native/core/cpu/delta_chunks.cc
  native/core/cpu/delta_kernels.cc
  native/core/cpu/gemm.cc
  native/core/cpu/kernels.cc
  native/core/cpu/tensors.cc)
set(nlac_loss_sources
  native/core/loss/linear_loss.cc
  native/core/loss/logit_cap.cc
  native/core/loss/mixed_products.cc
  native/core/loss/plan.cc
  native/core/loss/preference.cc
  native/core/loss/products.cc
  native/core/loss/row_detail.cc
  native/core/loss/row_kernels.cc
  native/core/loss/rows.cc
  native/core/loss/soft_q.cc)
set(nlac_optim_sources
  native/core/optim/kernels.cc
  native/core/optim/optim.cc)
set(nlac_model_sources
  native/core/model/adapter.cc
  native/core/model/attention.cc
  native/core/model/attention_part.cc
  native/core/model/classifier.cc
  native/core/model/cuda_inference.cc
  native/core/model/decoder.cc
  native/core/model/delta_part.cc
  native/core/model/delta_rule.cc
  native/core/model/elementwise.cc
  native/core/model/embedding.cc
  native/core/model/export_adapter.cc
  native/core/model/export_weights.cc
  native/core/model/experts_beside.cc
  native/core/model/experts_part.cc
  native/core/model/experts_routing.cc
  native/core/model/feed_forward.cc
  native/core/model/gated_delta.cc
  native/core/model/kv_store.cc
  native/core/model/layer.cc
  native/core/model/layer_inputs.cc
  native/core/model/linear.cc
  native/core/model/load_weights.cc
  native/core/model/parameters.cc
  native/core/model/rope.cc
  native/core/model/short_convolution.cc
  native/core/model/state_store.cc
  native/core/model/weights.cc)
set(nlac_generate_sources
  native/core/generate/cuda_draw.cc
  native/core/generate/engine.cc
  native/core/generate/engine_blocks.cc
  native/core/generate/engine_draw.cc
  native/core/generate/logit_kernels.cc
  native/core/generate/sample.cc)
set(nlac_ranks_sources
  native/core/ranks/rank_group.cc
  native/core/ranks/shard_layout.cc)
set(nlac_learner_sources
  native/core/learner/arguments.cc
  native/core/learner/checkpoint.cc
  native/core/learner/exchanges.cc
  native/core/learner/inference.cc
  native/core/learner/layer_schedule.cc
  native/core/learner/learner.cc
  native/core/learner/losses.cc
  native/core/learner/micro_batches.cc
  native/core/learner/optimization.cc
  native/core/learner/preferences.cc
  native/core/learner/sharding.cc)
set(nlac_pch_sources native/core/pch.cc)
set(nlac_loader_sources native/loader/loader.cc)
set(nlac_older_systems_sources native/loader/older_systems.cc)
set(nlac_binding_sources
  native/binding/addon.cc
  native/binding/convert.cc
  native/binding/errors.cc
  native/binding/job_queue.cc
  native/binding/learner_arguments.cc
  native/binding/learner_binding.cc
  native/binding/learner_results.cc
  native/binding/ranks_binding.cc
  native/binding/sampler_binding.cc
  native/binding/tensor_binding.cc
  native/binding/worker.cc)
set(nlac_cuda_sources
  native/cuda/adamw.cu
  native/cuda/attention.cu
  native/cuda/draw.cu
  native/cuda/elementwise.cu
  native/cuda/ema.cu
  native/cuda/sum_tree.cu
  native/cuda/token_rows.cu)

# --- tests: nlac_test_NAME_sources are test_NAME's ---

set(nlac_test_io_sources
  native/test/core/io/gguf_test.cc
  native/test/core/io/json_test.cc
  native/test/core/io/mapped_file_test.cc
  native/test/core/io/mutation_test.cc
  native/test/core/io/platform_portable_test.cc
  native/test/core/io/platform_test.cc
  native/test/core/io/safetensors_test.cc
  native/test/core/io/tensor_entry_test.cc)
set(nlac_test_replay_sources
  native/test/core/replay/sum_tree_kernels_test.cc
  native/test/core/replay/sum_tree_math_test.cc
  native/test/core/replay/sum_tree_test.cc)
set(nlac_test_block_pool_sources
  native/test/core/generate/block_pool_test.cc
  native/test/core/generate/state_pool_test.cc)
set(nlac_test_grammar_sources
  native/test/core/generate/grammar_test.cc)
set(nlac_test_binding_sources
  native/test/binding/job_queue_test.cc)
set(nlac_test_cpu_sources
  native/test/core/cpu/gemm_test.cc
  native/test/core/cpu/kernels_test.cc)
set(nlac_test_loss_sources
  native/test/core/loss/linear_loss_precision_test.cc
  native/test/core/loss/linear_loss_test.cc
  native/test/core/loss/plan_test.cc
  native/test/core/loss/preference_test.cc
  native/test/core/loss/products_test.cc
  native/test/core/loss/row_detail_test.cc
  native/test/core/loss/rows_test.cc
  native/test/core/loss/soft_q_test.cc
  native/test/core/loss/token_loss_test.cc)
set(nlac_test_optim_sources
  native/test/core/optim/gpu_test.cc
  native/test/core/optim/moving_average_test.cc
  native/test/core/optim/optim_test.cc)
set(nlac_test_model_sources
  native/test/core/model/adapter_test.cc
  native/test/core/model/attention_test.cc
  native/test/core/model/config_gguf_test.cc
  native/test/core/model/config_test.cc
  native/test/core/model/decoder_test.cc
  native/test/core/model/experts_test.cc
  native/test/core/model/gated_delta_test.cc
  native/test/core/model/gemma4_test.cc
  native/test/core/model/gpt_oss_test.cc
  native/test/core/model/kernels_test.cc
  native/test/core/model/qwen3_5_test.cc
  native/test/core/model/weights_test.cc)
set(nlac_test_generate_sources
  native/test/core/generate/engine_calls_test.cc
  native/test/core/generate/engine_states_test.cc
  native/test/core/generate/engine_test.cc
  native/test/core/generate/sample_test.cc)
set(nlac_test_ranks_sources
  native/test/core/ranks/rank_group_test.cc
  native/test/core/ranks/shard_layout_test.cc)
set(nlac_test_learner_sources
  native/test/core/learner/adapter_test.cc
  native/test/core/learner/checkpoint_test.cc
  native/test/core/learner/divided_weights_test.cc
  native/test/core/learner/layer_schedule_test.cc
  native/test/core/learner/preferences_test.cc
  native/test/core/learner/scoring_test.cc
  native/test/core/learner/sharding_test.cc
  native/test/core/learner/soft_q_test.cc
  native/test/core/learner/surrogate_test.cc
  native/test/core/learner/training_test.cc)
set(nlac_test_cuda_sources
  native/test/cuda/adamw_test.cc
  native/test/cuda/attention_test.cc
  native/test/cuda/draw_test.cc
  native/test/cuda/elementwise_test.cc
  native/test/cuda/ema_test.cc
  native/test/cuda/sum_tree_test.cc
  native/test/cuda/token_rows_test.cc)
set(nlac_test_cuda_inference_sources
  native/test/cuda/inference/draw_test.cc
  native/test/cuda/inference/inference_test.cc)
set(nlac_test_main_sources native/test/main.cc)
set(nlac_emulation_sources
  native/test/cuda/emulation/emulation.cc
  native/test/cuda/emulation/runtime.cc)
set(nlac_emulation_kernels native/test/cuda/emulation/emulation_test.cu)
set(nlac_fuzz_sources native/fuzz/target.cc)

# --- the check ---

get_cmake_property(nlac_variables VARIABLES)
set(nlac_listed "")
foreach(variable IN LISTS nlac_variables)
  if(variable MATCHES "^nlac_.*_(sources|kernels)$")
    list(APPEND nlac_listed ${${variable}})
  endif()
endforeach()
file(GLOB_RECURSE nlac_found RELATIVE "${CMAKE_SOURCE_DIR}" CONFIGURE_DEPENDS native/*.cc native/*.cu)
list(REMOVE_ITEM nlac_found ${nlac_listed})
if(nlac_found)
  message(FATAL_ERROR "Not listed in cmake/sources.cmake: ${nlac_found}")
endif()
