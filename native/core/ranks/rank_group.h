// The ranks of one training: how they connect, and the collectives they use, through libtorch's
// c10d: a TCPStore for addresses and keys, Gloo between CPUs, NCCL between GPUs.
//
// Thread rule: set() and get() on any thread, everything else on the learner's. All ranks make the
// same collective calls in the same order. host() is a group of its own: one thread at a time may
// use it, while the learner's uses this one.
//
// Errors: ERR_PEER if another rank has ended, does not answer within the timeout, or failed in
// together(); ERR_CONFIG if this build cannot connect the device.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/error.h"

namespace nlac {

// What together() throws on the ranks that have not failed themselves.
class OtherRankFailed : public Error {
 public:
  OtherRankFailed() : Error("ERR_PEER", "another rank failed; its message has the reason") {}
};

struct RankPlace {
  int rank = 0, ranks = 1;
  std::string address;  // of the store
  uint16_t port = 0;    // 0: any free one, if this rank serves
  bool serves = false;  // hosts the store, which ends with this group; otherwise joins it
  std::string prefix;   // of all keys, so that an earlier attempt's are not read
  std::chrono::milliseconds timeout{600'000};  // of joining, get() and each collective
};

class RankGroup {
 public:
  // Opens the store, or waits for it.
  explicit RankGroup(const RankPlace& place);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.ranks; }
  uint16_t port() const;  // of the store

  void set(const std::string& key, const std::string& value);
  std::string get(const std::string& key);  // waits until it is set

  // Connects all ranks for tensors on `device`. Collectives need it. Does nothing if the ranks are
  // connected. Throws ERR_PEER if an earlier call failed.
  void connect(at::Device device);
  // The same ranks for tensors on the CPU, over other connections (Gloo). Collectives of the two
  // groups do not wait for each other.
  RankGroup& host();

  // In place: the sum of all ranks' tensors, the same bits on every rank.
  void all_reduce(const at::Tensor& tensor);
  // own [n] ← this rank's part of the sum of all [n * ranks]. They must not overlap.
  void reduce_scatter(const at::Tensor& own, const at::Tensor& all);
  // all [n * ranks] ← every rank's own [n] in order. `own` may be this rank's part of `all`.
  void all_gather(const at::Tensor& all, const at::Tensor& own);
  // Rank 0's all [n * ranks] ← every rank's own [n] in order. `all` is not used on other ranks. On
  // the CPU only.
  void gather(const at::Tensor& all, const at::Tensor& own);
  // Starts all_gather(). The returned function waits for it; it may be called once, or dropped if
  // another call has thrown. Until then neither tensor may be used.
  std::function<void()> start_all_gather(const at::Tensor& all, const at::Tensor& own);
  double sum(double value);
  int64_t max(int64_t value);
  // Runs `body` on all ranks. If it throws on any, all throw: its exception, or OtherRankFailed. `body`
  // must not communicate, unless every rank makes the same collective calls also if it fails.
  void together(const std::function<void()>& body);

 private:
  struct Backend;
  RankGroup(const RankPlace& place, std::unique_ptr<Backend> backend);
  RankPlace place_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<RankGroup> host_;
};

}  // namespace nlac
