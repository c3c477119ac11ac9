#include "core/ranks/rank_group.h"

#include <c10/util/Logging.h>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef NLAC_NCCL
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "core/error.h"

namespace nlac {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Converts exceptions of c10d and gloo to ERR_PEER; `what` names the call.
template <typename Call>
auto as_peer(const std::string& what, Call call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::Error& error) {
    fail("ERR_PEER", what, ": ", first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {  // gloo's
    fail("ERR_PEER", what, ": ", first_line(error.what()));
  }
}

// Opens the store, or waits for it. A TCPStore that does not reach its server waits for one to three
// times its timeout, therefore it gets several short ones, until `place.timeout` has passed. The rank
// that serves the store reaches it at once, unless its threads do not get a processor.
c10::intrusive_ptr<c10d::TCPStore> opened_store(const RankPlace& place, c10d::TCPStoreOptions options) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + place.timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    options.timeout =
        place.serves ? place.timeout : std::clamp(left / 3, milliseconds(10), milliseconds(5000));
    try {
      return c10::make_intrusive<c10d::TCPStore>(place.address, options);
    } catch (const c10::DistError&) {
      if (place.serves) throw;
      NLAC_REQUIRE(std::chrono::steady_clock::now() < deadline, "ERR_PEER", "the store of the ranks at ",
                   place.address, ":", place.port, " did not answer for ",
                   static_cast<double>(place.timeout.count()) / 1000, " s");
    }
  }
}

c10::intrusive_ptr<c10d::Backend> gloo(const c10::intrusive_ptr<c10d::Store>& store, const RankPlace& place) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(place.timeout);
  // The network interface to use, as torch's own launchers name it.
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  // Ranks on one machine use its loopback interface, because its host name may not resolve.
  const bool local = place.address == "localhost" || place.address.starts_with("127.");
  if (interface != nullptr && *interface != 0) {
    options->devices.push_back(Gloo::createDeviceForInterface(interface));
  } else if (local) {
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(Gloo::createDefaultDevice());
  }
  return c10::make_intrusive<Gloo>(store, place.rank, place.ranks, options);
}

#ifdef NLAC_NCCL
void require_connectable(at::Device) {}

c10::intrusive_ptr<c10d::Backend> nccl(const c10::intrusive_ptr<c10d::Store>& store, const RankPlace& place) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = place.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, place.rank, place.ranks, options);
}
#else
void require_connectable(at::Device device) {
  NLAC_REQUIRE(device.is_cpu(), "ERR_CONFIG",
               "this addon was built without NCCL, which ranks on GPUs need: install NCCL's headers beside "
               "torch (nvidia-nccl-cu13) and rebuild it");
}

c10::intrusive_ptr<c10d::Backend> nccl(const c10::intrusive_ptr<c10d::Store>&, const RankPlace&) {
  fail("ERR_INTERNAL", "this addon was built without NCCL");
}
#endif

}  // namespace

struct RankGroup::Backend {
  c10::intrusive_ptr<c10d::TCPStore> server;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> group;
  // What sum() and max() send, [1]. Allocated once, so that neither fails while the others wait.
  at::Tensor real, integer;
  bool tried = false;  // to connect

  void connect(const RankPlace& place, at::Device device) {
    as_peer("the ranks did not connect",
            [&] { group = device.is_cpu() ? gloo(store, place) : nccl(store, place); });
    const at::TensorOptions on = at::TensorOptions().device(device);
    real = at::zeros({1}, on.dtype(at::kDouble));
    integer = at::zeros({1}, on.dtype(at::kLong));
  }

  template <typename Call>
  void run(const char* what, std::chrono::milliseconds timeout, Call call) {
    NLAC_REQUIRE(group, "ERR_INTERNAL", "the ranks are not connected");
    as_peer(what, [&] { call()->wait(timeout); });
  }
};

// c10d logs failures to stderr, with its own stack, before it throws them. Exceptions say enough.
// TORCH_CPP_LOG_LEVEL, as torch documents it, shows the log.
static void quieten_c10d() {
  static const bool once = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr)
      FLAGS_caffe2_log_level = c10::GLOG_FATAL;
    else
      c10::initLogging();
    return true;
  }();
  (void)once;
}

RankGroup::RankGroup(const RankPlace& place) : place_(place), backend_(std::make_unique<Backend>()) {
  quieten_c10d();
  NLAC_REQUIRE(place.ranks >= 1 && place.rank >= 0 && place.rank < place.ranks, "ERR_CONFIG", "rank ",
               place.rank, " of ", place.ranks, " does not exist");
  c10d::TCPStoreOptions options;
  options.port = place.port;
  options.isServer = place.serves;
  options.numWorkers = static_cast<size_t>(place.ranks);
  options.waitWorkers = false;
  const std::string where = place.address + ":" + std::to_string(place.port);
  as_peer("the store of the ranks at " + where + " cannot be used",
          [&] { backend_->server = opened_store(place, options); });
  backend_->server->setTimeout(place.timeout);
  backend_->store = c10::make_intrusive<c10d::PrefixStore>(place.prefix, backend_->server);
}

RankGroup::RankGroup(const RankPlace& place, std::unique_ptr<Backend> backend)
    : place_(place), backend_(std::move(backend)) {}

RankGroup::~RankGroup() = default;

uint16_t RankGroup::port() const { return backend_->server->getPort(); }

void RankGroup::set(const std::string& key, const std::string& value) {
  as_peer("the store of the ranks",
          [&] { backend_->store->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

std::string RankGroup::get(const std::string& key) {
  return as_peer("the store of the ranks", [&] {
    const std::vector<uint8_t> value = backend_->store->get(key);
    return std::string(value.begin(), value.end());
  });
}

void RankGroup::connect(at::Device device) {
  if (host_) return;
  require_connectable(device);
  // The store holds the addresses of the first attempt, which a second one would read.
  NLAC_REQUIRE(!std::exchange(backend_->tried, true), "ERR_PEER",
               "the ranks did not connect at their first attempt: join them again, under another prefix");
  Backend connected = *backend_;
  connected.connect(place_, device);
  auto host = std::make_unique<Backend>();
  host->store = c10::make_intrusive<c10d::PrefixStore>("host", backend_->store);
  host->connect(place_, at::kCPU);
  host_.reset(new RankGroup(place_, std::move(host)));
  *backend_ = std::move(connected);
}

RankGroup& RankGroup::host() {
  NLAC_REQUIRE(host_, "ERR_INTERNAL", "the ranks are not connected");
  return *host_;
}

void RankGroup::all_reduce(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{tensor};
  backend_->run("all-reduce", place_.timeout, [&] { return backend_->group->allreduce(tensors); });
}

void RankGroup::reduce_scatter(const at::Tensor& own, const at::Tensor& all) {
  if (all.numel() == 0) return;
  at::Tensor to = own, from = all;
  backend_->run("reduce-scatter", place_.timeout,
                [&] { return backend_->group->_reduce_scatter_base(to, from); });
}

void RankGroup::all_gather(const at::Tensor& all, const at::Tensor& own) {
  if (all.numel() == 0) return;
  at::Tensor to = all, from = own;
  backend_->run("all-gather", place_.timeout, [&] { return backend_->group->_allgather_base(to, from); });
}

void RankGroup::gather(const at::Tensor& all, const at::Tensor& own) {
  const int64_t n = own.numel();
  if (n == 0) return;
  if (rank() != 0) {
    std::vector<at::Tensor> tensors{own};
    backend_->run("gather", place_.timeout, [&] { return backend_->group->send(tensors, 0, 0); });
    return;
  }
  all.narrow(0, 0, n).copy_(own);
  for (int from = 1; from < size(); ++from) {
    std::vector<at::Tensor> tensors{all.narrow(0, from * n, n)};
    backend_->run("gather", place_.timeout, [&] { return backend_->group->recv(tensors, from, 0); });
  }
}

std::function<void()> RankGroup::start_all_gather(const at::Tensor& all, const at::Tensor& own) {
  if (all.numel() == 0) return [] {};
  NLAC_REQUIRE(backend_->group, "ERR_INTERNAL", "the ranks are not connected");
  at::Tensor to = all, from = own;
  const auto work = as_peer("all-gather", [&] { return backend_->group->_allgather_base(to, from); });
  // The tensors are held, because the transfer uses them.
  return [this, work, to, from] { as_peer("all-gather", [&] { work->wait(place_.timeout); }); };
}

double RankGroup::sum(double value) {
  NLAC_REQUIRE(backend_->group, "ERR_INTERNAL", "the ranks are not connected");
  const at::Tensor& cell = backend_->real.fill_(value);
  all_reduce(cell);
  return cell.item<double>();
}

int64_t RankGroup::max(int64_t value) {
  NLAC_REQUIRE(backend_->group, "ERR_INTERNAL", "the ranks are not connected");
  const at::Tensor& cell = backend_->integer.fill_(value);
  std::vector<at::Tensor> tensors{cell};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  backend_->run("all-reduce", place_.timeout, [&] { return backend_->group->allreduce(tensors, options); });
  return cell.item<int64_t>();
}

void RankGroup::together(const std::function<void()>& body) {
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  bool failed = true;
  try {
    failed = max(failure != nullptr) != 0;
  } catch (...) {
    if (failure) std::rethrow_exception(failure);  // why the others fail, too
    throw;
  }
  if (failure) std::rethrow_exception(failure);
  if (failed) throw OtherRankFailed();
}

}  // namespace nlac
