#include "core/io/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/io/safetensors.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("a mapped file shows the file's bytes") {
  Scratch scratch;
  write_text(scratch / "file", "seven b");
  const auto file = MappedFile::open(scratch / "file");
  CHECK(file->path() == scratch / "file");
  CHECK(std::string(reinterpret_cast<const char*>(file->data()), file->size()) == "seven b");
}

TEST_CASE("an empty file maps to no bytes") {
  Scratch scratch;
  write_text(scratch / "empty", "");
  CHECK(MappedFile::open(scratch / "empty")->size() == 0);
}

TEST_CASE("anything but a readable regular file is refused") {
  Scratch scratch;
  CHECK_REFUSED(MappedFile::open(scratch / "absent"), "ERR_IO", "cannot be opened");
  CHECK_REFUSED(MappedFile::open(scratch.path()), "ERR_IO", "not a regular file");
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);
  CHECK_REFUSED(MappedFile::open(scratch / "pipe"), "ERR_IO", "not a regular file");
}

TEST_CASE("an atomic write replaces the file and leaves nothing beside it") {
  Scratch scratch;
  write_file_atomically(scratch / "file", "first", 5);
  write_file_atomically(scratch / "file", "second", 6);
  const Bytes bytes = read_bytes(scratch / "file");
  CHECK(std::string(bytes.begin(), bytes.end()) == "second");
  write_file_atomically(scratch / "empty", nullptr, 0);
  CHECK(read_bytes(scratch / "empty").empty());
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 2);
}

TEST_CASE("what a killed process of the same number has left does not hinder an atomic write") {
  const Scratch scratch;
  const std::string left = scratch / "file.tmp-" + std::to_string(::getpid()) + "-";
  for (int i = 0; i < 1000; ++i) std::ofstream(left + std::to_string(i)) << "left";
  write_file_atomically(scratch / "file", "whole", 5);
  const auto file = MappedFile::open(scratch / "file");
  CHECK(std::string(reinterpret_cast<const char*>(file->data()), file->size()) == "whole");
  CHECK(std::filesystem::file_size(left + "0") == 4);
}

TEST_CASE("an atomic write that fails keeps the old file") {
  Scratch scratch;
  CHECK_REFUSED(write_file_atomically(scratch / "absent/file", "x", 1), "ERR_IO", "cannot be created");
  std::filesystem::create_directory(scratch / "taken");
  write_text(scratch / "taken/inside", "kept");
  CHECK_REFUSED(write_file_atomically(scratch / "taken", "x", 1), "ERR_IO", "cannot be replaced");
  CHECK(read_bytes(scratch / "taken/inside").size() == 4);
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 1);
}
