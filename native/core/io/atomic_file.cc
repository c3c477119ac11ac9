#include "core/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/io/safetensors.h"
#include "core/platform.h"

namespace nlac {

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  static std::atomic<unsigned> count{0};
  // A killed process may have left a file of the same name: in a container each has the same number.
  do {
    beside_ = path + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
    fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  NLAC_REQUIRE(fd_ >= 0, "ERR_IO", beside_, ": cannot be created: ", std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!beside_.empty()) ::unlink(beside_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, at, std::min<size_t>(bytes, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    NLAC_REQUIRE(written > 0, "ERR_IO", beside_, ": cannot be written: ", std::strerror(errno));
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  NLAC_REQUIRE(platform::flush_to_disk(fd_) == 0, "ERR_IO", beside_,
               ": cannot be synced: ", std::strerror(errno));
  const int closed = ::close(fd_);
  fd_ = -1;
  NLAC_REQUIRE(closed == 0, "ERR_IO", beside_, ": cannot be closed: ", std::strerror(errno));
  NLAC_REQUIRE(::rename(beside_.c_str(), path_.c_str()) == 0, "ERR_IO", path_,
               ": cannot be replaced: ", std::strerror(errno));
  beside_.clear();

  // Without this a power failure may undo the rename.
  std::string directory = std::filesystem::path(path_).parent_path().string();
  if (directory.empty()) directory = ".";
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  NLAC_REQUIRE(fd >= 0, "ERR_IO", directory, ": cannot be opened: ", std::strerror(errno));
  const int synced = platform::flush_to_disk(fd);
  const int reason = errno;
  ::close(fd);
  // Some file systems know no directory sync and answer EINVAL.
  NLAC_REQUIRE(synced == 0 || reason == EINVAL, "ERR_IO", directory,
               ": cannot be synced: ", std::strerror(reason));
}

void write_file_atomically(const std::string& path, const void* data, size_t bytes) {
  AtomicFile file(path);
  file.write(data, bytes);
  file.commit();
}

}  // namespace nlac
