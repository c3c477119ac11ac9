// Generation with continuous batching. Requests wait in line, are admitted in the order they came as soon as there are
// blocks for their prompts (only one whose grammar is still being compiled lets others pass), and advance together, a
// step at a time: every text that is being written by one token, and
// beside them as many tokens of prompts as do not keep the writing waiting. A text leaves with its last token; another
// may join at the next step.
//
// Keys and values lie in blocks (block_pool.h) that texts with the same beginning share: it is read once and stored
// once, within a call and across calls. Blocks of finished texts are found again by token ids.
//
// Memory: `cache_bytes` bounds all blocks, of texts under way and of finished ones. What does not fit waits; where
// texts under way outgrow the bound, the last one admitted gives its blocks up and is read again later. Only a
// text that is alone may go beyond.
//
// Thread rule: the learner's thread; `cancelled` and `on_token` may be served by others.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "core/generate/block_pool.h"
#include "core/generate/request.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"

namespace nlac {

// The requests of one call. All is final once it is done.
struct GenerateCall {
  std::vector<GenerateRequest> requests;
  GenerateHooks hooks;                  // what they point to outlives the call's end
  std::vector<GenerateResult> results;  // in the order of the requests
  size_t unfinished = 0;
  // ERR_NOT_FINITE, a grammar's ERR_VALUE, or what the decoder threw; the results then mean nothing.
  std::exception_ptr failure;

  bool done() const { return unfinished == 0; }
};

class Engine {
 public:
  // Prompt tokens of a step: where nothing is being written, and beside texts that are.
  static constexpr int64_t kPromptTokens = 2048, kPromptTokensBeside = 512;

  // For one set of weights at a time, in `dtype` on `device`.
  Engine(Decoder& decoder, size_t cache_bytes, at::ScalarType dtype, at::Device device);
  ~Engine();

  // Puts a call's requests in line. Throws ERR_VALUE for a bad request (empty prompt, id outside the vocabulary, prompt
  // longer than the context, a sampling parameter out of range), naming its index; then none is in line. A grammar may be
  // refused later, once it is compiled: then the call fails so.
  std::shared_ptr<GenerateCall> submit(std::vector<GenerateRequest> requests, GenerateHooks hooks);
  // Calls that were cancelled are done, and every other text goes on by a step. False when none is left. The weights
  // must be the same until then.
  bool step(const Weights& weights);
  bool busy() const { return !running_.empty() || !waiting_.empty(); }
  // submit, step until the call is done, and its results or failure.
  std::vector<GenerateResult> generate(const Weights& weights, std::vector<GenerateRequest> requests,
                                       GenerateHooks hooks);

  // Must be called whenever the weights change. Requires that the engine is not busy.
  void drop_caches();
  size_t cached_bytes() const;                          // of all blocks in use
  int64_t preemptions() const { return preemptions_; }  // so far

 private:
  struct Sequence;
  using Sequences = std::deque<std::unique_ptr<Sequence>>;

  void end_cancelled();
  void open_grammars();
  void admit();
  bool take_blocks(Sequence& sequence);
  bool make_room(Sequence& sequence);
  void preempt_last();
  void advance(const Weights& weights);
  void draw(const Weights& weights, const at::Tensor& hidden, const std::vector<Sequence*>& complete);
  static void choose(Sequence& sequence, const float* logits, int64_t vocab);
  static void choose_on_gpu(const std::vector<Sequence*>& sequences, const at::Tensor& logits, int64_t begin);
  void name_blocks(Sequence& sequence);
  void give_back(Sequence& sequence);
  void leave(Sequence& sequence);  // the running sequences, in whatever state
  void fail(const std::shared_ptr<GenerateCall>& call, std::exception_ptr failure);

  Decoder& decoder_;
  size_t block_bytes_;
  BlockPool pool_;
  KvStore store_;
  Sequences waiting_, running_;  // both in the order of admission
  int64_t preemptions_ = 0;
};

}  // namespace nlac
