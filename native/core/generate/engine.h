// Generation with continuous batching. Requests are admitted in order of arrival once there are
// blocks for their prompts; later requests overtake only a request whose grammar is still being
// compiled. A step decodes one token of every text and prefills prompts in chunks, so that prefill
// does not stall decoding. At least half of a chunk is the oldest prompt's, the rest goes to the
// shortest ones, so that they do not wait for long ones. A text leaves with its last token; another
// may join at the next step.
//
// Keys and values lie in blocks (block_pool.h). Texts with a common prefix share its blocks, within
// a call and across calls: the prefix is computed and stored once. Blocks of finished texts stay
// cached and are found by token ids.
//
// A recurrent model also has a state per text (state_pool.h). Snapshots of states are kept at the
// block boundary where texts diverge, and at the end of a text: a text continues from the latest
// snapshot within its cached prefix. If another text is computing its prefix, it waits for that
// snapshot. Half of `cache_bytes` is for states, half for blocks.
//
// Memory: `cache_bytes` bounds all blocks, in use and cached. Requests that do not fit wait. If
// running texts outgrow the bound, the last one admitted is preempted: it releases its blocks and
// is computed again later. Only a text that runs alone may exceed the bound.
//
// Thread rule: the learner's thread. Other threads may set `cancelled`.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "core/generate/block_pool.h"
#include "core/generate/request.h"
#include "core/generate/state_pool.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"

namespace nlac {

// The requests of one call. Nothing changes once it is done.
struct GenerateCall {
  std::vector<GenerateRequest> requests;
  GenerateHooks hooks;                  // what they point to outlives the call's end
  std::vector<GenerateResult> results;  // in the order of the requests
  size_t unfinished = 0;
  // ERR_NOT_FINITE, ERR_VALUE of a grammar, or an error of the decoder. The results are then
  // invalid.
  std::exception_ptr failure;

  bool done() const { return unfinished == 0; }
};

class Engine {
 public:
  // Prompt tokens of a step: if no text is decoding, and beside texts that are.
  static constexpr int64_t kPromptTokens = 2048, kPromptTokensBeside = 512;

  // For one set of weights at a time, in `dtype` on `device`.
  Engine(Decoder& decoder, size_t cache_bytes, at::ScalarType dtype, at::Device device);
  ~Engine();

  // Enqueues a call's requests. Throws ERR_VALUE for a bad request (empty prompt, id outside the
  // vocabulary, prompt longer than the context, a sampling parameter out of range) and names its
  // index. If it throws, also std::bad_alloc, no request is enqueued. A grammar may fail later, when
  // it is compiled; the call fails then.
  std::shared_ptr<GenerateCall> submit(std::vector<GenerateRequest> requests, GenerateHooks hooks);
  // Ends cancelled calls and advances every other text by a step. Returns false when none is left.
  // The weights must not change until then.
  bool step(const Weights& weights);
  // The two halves of step(). prepare() ends cancelled calls and admits requests; it returns whether
  // there is a text to advance. compute() advances it, and passes `before_layer` to Decoder::infer.
  // Neither throws: an error fails all calls.
  bool prepare();
  void compute(const Weights& weights, const Decoder::BeforeLayer& before_layer = {});
  void fail_all(std::exception_ptr failure);  // of the calls that are not done
  bool busy() const { return !running_.empty() || !waiting_.empty(); }
  // Submits a call, steps until it is done, and returns its results or throws its failure.
  std::vector<GenerateResult> generate(const Weights& weights, std::vector<GenerateRequest> requests,
                                       GenerateHooks hooks);

  // Must be called when the weights change. Requires that the engine is not busy.
  void drop_caches();
  size_t cached_bytes() const;                          // of all blocks and states in use
  int64_t preemptions() const { return preemptions_; }  // so far

 private:
  struct Sequence;
  using Sequences = std::deque<std::unique_ptr<Sequence>>;

  void end_cancelled();
  void open_grammars();
  bool recurrent() const { return state_bytes_ > 0; }
  bool awaits_prefix(const Sequence& sequence);
  BlockPool::Match find_cached(Sequence& sequence);
  void keep_state(const Sequence& sequence, int32_t slot);
  void admit();
  bool take_blocks(Sequence& sequence);
  bool make_room(Sequence& sequence);
  void preempt_last();
  // Runs `work`. If it throws, all calls fail.
  template <typename Work>
  void guarded(Work work);
  std::vector<Sequence*> prompts(int64_t most, int64_t* first);
  void advance(const Weights& weights, const Decoder::BeforeLayer& before_layer);
  void draw(const Weights& weights, const at::Tensor& hidden, const std::vector<Sequence*>& complete);
  static void choose(Sequence& sequence, const float* logits, int64_t vocab);
  static void choose_on_gpu(const std::vector<Sequence*>& sequences, const at::Tensor& logits, int64_t begin);
  void name_blocks(Sequence& sequence);
  void give_back(Sequence& sequence);
  void leave(Sequence& sequence);  // removes a running sequence in any state
  void fail(const std::shared_ptr<GenerateCall>& call, std::exception_ptr failure);

  Decoder& decoder_;
  size_t block_bytes_, state_bytes_;  // state_bytes_ is 0 if the model is not recurrent
  BlockPool pool_;
  StatePool states_;
  KvStore store_;
  Sequences waiting_, running_;  // both in the order of admission
  int64_t preemptions_ = 0;
};

}  // namespace nlac
