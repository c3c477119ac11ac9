// A file that appears whole or not at all: written beside its path, synced, renamed over it.
#pragma once

#include <cstddef>
#include <string>

namespace nlac {

class AtomicFile {
 public:
  // Opens the file beside `path`. Every method throws ERR_IO.
  explicit AtomicFile(const std::string& path);
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  // Syncs the file, renames it to `path`, syncs the directory.
  void commit();

 private:
  std::string path_, beside_;
  int fd_ = -1;
};

}  // namespace nlac
