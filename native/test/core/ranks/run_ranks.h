// Several ranks as threads of this process.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/ranks/rank_group.h"

namespace nlac::test {

// Opens the group. The rank that serves tells the others its port, or why there is none.
inline std::shared_ptr<RankGroup> served_group(const RankPlace& place, std::promise<uint16_t>& served) {
  if (!place.serves) return std::make_shared<RankGroup>(place);
  try {
    auto group = std::make_shared<RankGroup>(place);
    served.set_value(group->port());
    return group;
  } catch (...) {
    served.set_exception(std::current_exception());
    throw;
  }
}

// Calls body(group) for each rank on a thread of its own. Rethrows the first rank's exception, in
// their order, when all have ended.
template <typename Body>
void run_ranks(int ranks, const Body& body, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  // c10d's record of recent collectives, one per process, is not safe for several groups at once.
  // It is read when the first collective runs.
  static const int unrecorded = setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  (void)unrecorded;
  std::promise<uint16_t> served;
  const std::shared_future<uint16_t> port = served.get_future().share();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::NoGradGuard no_grad;
      at::set_num_threads(1);
      try {
        RankPlace place;
        place.rank = rank;
        place.ranks = ranks;
        place.address = "127.0.0.1";
        place.serves = rank == 0;
        place.prefix = "test";
        place.timeout = timeout;
        if (!place.serves) place.port = port.get();
        const auto group = served_group(place, served);
        body(group);
        // The store ends with rank 0.
        group->connect(at::kCPU);
        group->max(0);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace nlac::test
