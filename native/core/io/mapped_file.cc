#include "core/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace nlac {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it is refused below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  NLAC_REQUIRE(fd >= 0, "ERR_IO", path, ": cannot be opened: ", std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};

  struct stat info;
  NLAC_REQUIRE(::fstat(fd, &info) == 0, "ERR_IO", path, ": ", std::strerror(errno));
  NLAC_REQUIRE(S_ISREG(info.st_mode), "ERR_IO", path, ": not a regular file");

  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  file->size_ = static_cast<size_t>(info.st_size);
  if (file->size_ > 0) {  // an empty mapping is an error to mmap
    void* data = ::mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, fd, 0);
    NLAC_REQUIRE(data != MAP_FAILED, "ERR_IO", path, ": cannot be mapped: ", std::strerror(errno));
    file->data_ = static_cast<const uint8_t*>(data);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace nlac
