// Checkpoints of a whole model, and exports.
#include <chrono>
#include <future>

#include "test/core/learner/examples.h"

using namespace learner_test;
using namespace nlac;

TEST_CASE("a resumed learner continues bit for bit") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (bool pending : {false, true}) {
      CAPTURE(pending);
      const auto train = [&](Learner& learner, int from, int to) {
        for (int i = from; i < to; ++i) {
          learner.token_kl(some_distilled(), 1, {}, true);
          learner.step(quick_step(), "critic");
          learner.token_nll(some_texts(), true);
          learner.step(quick_step(), "policy", 0.05);
        }
      };
      const auto learner = Learner::create(tiny_config(Family::qwen2), 3, options_of(dtype));
      train(*learner, 0, 2);
      if (pending) learner->token_nll(some_texts(), true);
      Scratch directory;
      learner->save(directory.path());
      CHECK(fs::exists(directory / "gradients.safetensors") == pending);
      const auto resumed = Learner::resume(directory.path(), options_of(dtype));
      CHECK(equal(resumed->masters().list(), learner->masters().list()));
      CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
      train(*learner, 2, 5);
      train(*resumed, 2, 5);
      CHECK(equal(resumed->masters().list(), learner->masters().list()));
      CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
      const GenerateRequest request = request_of(random_ids(10, 1), 10, 1.0, 2);
      for (WeightSet which : {WeightSet::online, WeightSet::target}) {
        CHECK(resumed->generate({request}, which, {})[0].tokens ==
              learner->generate({request}, which, {})[0].tokens);
      }
    }
  }
}

TEST_CASE("texts are generated while a checkpoint is written") {
  const GenerateRequest request = request_of(random_ids(10, 1), 10, 1.0, 2);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (bool stepped : {false, true}) {
      CAPTURE(stepped);
      const auto learner = tiny_learner(options_of(dtype));
      learner->keep_reference();
      if (stepped) {
        learner->token_nll(some_texts(), true);
        learner->step(quick_step(), "policy", 0.05);
      }
      learner->token_nll(some_texts(), true);
      const auto tokens = [&](WeightSet which) { return learner->generate({request}, which, {})[0].tokens; };
      const Ids expected = tokens(WeightSet::online);
      Scratch quiet, meanwhile;
      learner->save(quiet.path());
      std::future<void> written = std::async(std::launch::async, learner->begin_save(meanwhile.path()));
      // Without a step, the first of these allocates θ̄.
      do {
        tokens(WeightSet::target);
        CHECK(tokens(WeightSet::online) == expected);
      } while (written.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
      written.get();
      CHECK(files_of(meanwhile) == files_of(quiet));
      CHECK(files_of(meanwhile).contains("target.safetensors") == stepped);
    }
  }
  const auto learner = tiny_learner();
  Scratch directory;
  const auto write = learner->begin_save(directory / "missing");
  CHECK(code_of(write) == "ERR_IO");
}

TEST_CASE("a checkpoint holds a target only once there is one") {
  const auto learner = tiny_learner();
  Scratch directory;
  learner->save(directory.path());
  CHECK_FALSE(fs::exists(directory / "target.safetensors"));
  CHECK(Learner::resume(directory.path(), options_of())->target_masters() == nullptr);
  // The same directory can be loaded as a model.
  CHECK(equal(Learner::load(directory.path(), options_of())->masters().list(), learner->masters().list()));
}

TEST_CASE("a damaged checkpoint is rejected") {
  const auto learner = tiny_learner();
  learner->update_target(1);
  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  Scratch directory;
  learner->save(directory.path());
  const auto resume = [&] { return code_of([&] { Learner::resume(directory.path(), options_of()); }); };
  REQUIRE(resume() == "none");
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(directory / name, std::ios::binary | std::ios::trunc) << text;
  };
  for (const char* name : {"learner.json", "config.json", "model.safetensors", "target.safetensors",
                           "optimizer-0.safetensors"}) {
    CAPTURE(name);
    fs::copy_file(directory / name, directory / "kept");
    fs::remove(directory / name);
    CHECK(resume() == "ERR_CHECKPOINT");
    write(name, "torn");
    CHECK(resume() == "ERR_CHECKPOINT");
    fs::copy_file(directory / "kept", directory / name, fs::copy_options::overwrite_existing);
    fs::resize_file(directory / name, fs::file_size(directory / name) / 2);
    CHECK(resume() == "ERR_CHECKPOINT");
    fs::remove(directory / name);
    fs::rename(directory / "kept", directory / name);
  }
  // Numbers that no training has.
  fs::copy_file(directory / "learner.json", directory / "kept");
  std::ifstream stream(directory / "kept");
  const std::string manifest{std::istreambuf_iterator<char>(stream), {}};
  for (const char* key : {"\"steps\": ", "\"targetUpdates\": "}) {
    for (const char* number : {"-1", "9223372036854775807"}) {
      const size_t from = manifest.find(key) + std::string(key).size();
      REQUIRE(from < manifest.size());
      std::string changed = manifest;
      write("learner.json",
            changed.replace(from, manifest.find_first_not_of("0123456789", from) - from, number));
      CHECK(resume() == "ERR_CHECKPOINT");
    }
  }
  fs::rename(directory / "kept", directory / "learner.json");
  REQUIRE(resume() == "none");
  // Tensors of another model.
  fs::copy_file(directory / "target.safetensors", directory / "optimizer-0.safetensors",
                fs::copy_options::overwrite_existing);
  CHECK(resume() == "ERR_CHECKPOINT");
  // A name that leads out of the directory.
  write("learner.json", R"({"format":1,"target":false,"targetUpdates":0,"gradients":false,
      "optimizers":[{"name":"","file":"../x","steps":1}]})");
  CHECK(resume() == "ERR_CHECKPOINT");
  write("learner.json", R"({"format":2})");
  CHECK(resume() == "ERR_CHECKPOINT");
  write("learner.json", R"([])");
  CHECK(resume() == "ERR_CHECKPOINT");
}

TEST_CASE("an exported model scores like the learner") {
  const auto learner = tiny_learner(options_of(), Family::qwen3);
  Scratch directory;
  learner->export_huggingface(directory.path());
  const auto loaded = Learner::load(directory.path(), options_of());
  CHECK(loaded->log_probs(some_texts(), WeightSet::online) ==
        learner->log_probs(some_texts(), WeightSet::online));
}

TEST_CASE("a directory with or without heads loads with or without heads") {
  const auto critic = tiny_critic();
  const auto plain = tiny_learner();
  Scratch with, without, exported;
  critic->save(with.path());
  plain->save(without.path());
  critic->export_huggingface(exported.path());
  const auto same = Learner::load(with.path(), with_value_head());
  CHECK(equal(same->masters().list(), critic->masters().list()));
  const auto bare = Learner::load(with.path(), options_of());
  CHECK(equal(bare->masters().list(), plain->masters().list()));
  for (const Scratch* directory : {&without, &exported}) {
    const auto fresh = Learner::load(directory->path(), with_value_head());
    CHECK(fresh->masters().value.eq(0).all().item<bool>());
    CHECK(fresh->masters().value_bias.eq(0).all().item<bool>());
    CHECK(equal(Learner::load(directory->path(), options_of())->masters().list(), plain->masters().list()));
  }
}

TEST_CASE("a resumed training has the saved heads, never new ones") {
  for (const Heads heads : {Heads::value, Heads::q}) {
    LearnerOptions options = options_of();
    options.heads = heads;
    Scratch with, without;
    tiny_learner(options)->save(with.path());
    tiny_learner()->save(without.path());
    REQUIRE(code_of([&] { Learner::resume(with.path(), options_of()); }) == "none");
    fs::copy_file(without / "model.safetensors", with / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    std::string message;
    CHECK(code_of([&] { Learner::resume(with.path(), options_of()); }, &message) == "ERR_CHECKPOINT");
    CAPTURE(message);
    const std::string missing = heads == Heads::value ? "value_head.weight" : "q_heads.0.advantage";
    const std::string file = with / "model.safetensors";
    CHECK(message.find(file + ": tensor " + missing + " is missing") == 0);
  }
}
